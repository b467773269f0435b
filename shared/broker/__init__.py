"""The only package that speaks Redis. The record of a request is the truth; the streams are doorbells.

Theory of operation. One hash per request (`Queue.records` + id) holds its state; every change of state is one Lua
script, which reads the state first and refuses an illegal move, so a call whose reply was lost can be sent again.
Stream entries wake readers and carry the message headers; an entry without a live record is dropped when met. Work
belongs to a worker while its lease (sorted set `Queue.leases`, by Redis' own clock) is alive; `tick`, run by whoever
holds the leader key, hands the work of dead owners to the retry lane. The attempt number fences: an answer counts only
for the attempt that runs now. Guarantees hold on Redis 6.2 and later and on Valkey; no newer command is used.
"""
