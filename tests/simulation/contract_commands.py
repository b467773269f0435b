"""Strategies for commands that the model and a real server both get: few keys and few ids, so that they meet."""

from hypothesis import strategies as st

Words = tuple[str, ...]

PLAIN_KEYS = st.sampled_from(["k1", "k2", "k3"])
STREAMS = st.sampled_from(["s1", "s2"])
GROUPS = st.sampled_from(["g1", "g2"])
CONSUMERS = st.sampled_from(["c1", "c2", "c3"])
VALUES = st.sampled_from(["1", "2", "-3", "x", "", "a b"])
FIELDS = st.sampled_from(["f1", "f2", "f3"])
NUMBERS = st.sampled_from(["0", "1", "2", "3", "-1", "-2", "7", "x"])
SCORES = st.sampled_from(["0", "1", "1.5", "-2", "1700000000000001", "inf", "-inf", "x"])
BOUNDS = st.sampled_from(["-inf", "+inf", "0", "1", "(1", "1.5", "(1.5", "2", "x"])
IDS = st.sampled_from(["1-1", "2-0", "2-1", "3-5", "4", "5-1", "9-9", "0-1", "x"])
RANGE_IDS = st.one_of(IDS, st.sampled_from(["-", "+", "(2-1", "(4", "0"]))
LONG_TTL = st.sampled_from(["100000", "200000"])


def _words(*parts: "str | st.SearchStrategy[str]") -> "st.SearchStrategy[Words]":
    return st.tuples(*(st.just(p) if isinstance(p, str) else p for p in parts))


def _more(
    first: "st.SearchStrategy[Words]", part: "st.SearchStrategy[str]", most: int = 3
) -> "st.SearchStrategy[Words]":
    return st.builds(lambda words, rest: (*words, *rest), first, st.lists(part, min_size=1, max_size=most).map(tuple))


def _optional(first: "st.SearchStrategy[Words]", *options: str) -> "st.SearchStrategy[Words]":
    chosen = st.lists(st.sampled_from(options), max_size=2, unique=True)
    return st.builds(lambda words, rest: (*words, *(w for o in rest for w in o.split())), first, chosen)


K, V, F, N = PLAIN_KEYS, VALUES, FIELDS, NUMBERS

STRINGS = st.one_of(
    _optional(_words("SET", K, V), "NX", "XX", "KEEPTTL", "GET", "PX 100000", "EX 100", "PX 0", "PX x"),
    _words("GET", K),
    _words("GETDEL", K),
    _words("SETNX", K, V),
    _words("PSETEX", K, LONG_TTL, V),
    _more(_words("MGET", K), K),
    _words("STRLEN", K),
    _words("INCR", K),
    _words("DECR", K),
    _words("INCRBY", K, N),
)
KEYS = st.one_of(
    _more(_words("DEL", K), K),
    _more(_words("UNLINK", K), K),
    _more(_words("EXISTS", K), K),
    _words("TYPE", K),
    _words("PEXPIRE", K, st.sampled_from(["100000", "0", "-5", "x"])),
    _words("EXPIRE", K, st.sampled_from(["100", "0"])),
    _words("PTTL", K),
    _words("TTL", K),
    _words("PERSIST", K),
    _words("RENAME", K, K),
    _words("KEYS", st.sampled_from(["*", "k?", "k*", "k1", "*[*"])),
    _words("DBSIZE"),
    _words("NONSENSE", K),
    _words("GET"),
    _words("PING"),
    _words("ECHO", V),
)
HASHES = st.one_of(
    _words("HSET", K, F, V),
    _words("HSET", K, F, V, F, V),
    _words("HSET", K, F, V, F),
    _words("HMSET", K, F, V),
    _words("HSETNX", K, F, V),
    _words("HGET", K, F),
    _more(_words("HMGET", K), F),
    _words("HGETALL", K),
    _words("HKEYS", K),
    _words("HVALS", K),
    _words("HLEN", K),
    _words("HEXISTS", K, F),
    _more(_words("HDEL", K), F),
    _words("HINCRBY", K, F, N),
)
LISTS = st.one_of(
    _more(_words("RPUSH", K), V),
    _more(_words("LPUSH", K), V),
    _words("LPOP", K),
    _words("RPOP", K),
    _words("LPOP", K, st.sampled_from(["1", "2", "9", "-1", "x"])),
    _words("LLEN", K),
    _words("LINDEX", K, N),
    _words("LRANGE", K, N, N),
    _words("LTRIM", K, N, N),
    _words("LREM", K, N, V),
    _words("LPOS", K, V),
    _words("LMOVE", K, K, st.sampled_from(["LEFT", "RIGHT", "UP"]), st.sampled_from(["LEFT", "RIGHT"])),
)
SETS = st.one_of(
    _more(_words("SADD", K), V),
    _more(_words("SREM", K), V),
    _words("SMEMBERS", K),
    _words("SISMEMBER", K, V),
    _words("SCARD", K),
)
ZSETS = st.one_of(
    _words("ZADD", K, SCORES, F),
    _words("ZADD", K, SCORES, F, SCORES, F),
    st.builds(
        lambda key, options, score, member: ("ZADD", key, *options, score, member),
        K,
        st.lists(st.sampled_from(["NX", "XX", "CH", "GT", "LT", "INCR"]), max_size=3, unique=True),
        SCORES,
        F,
    ),
    _words("ZINCRBY", K, SCORES, F),
    _more(_words("ZREM", K), F),
    _words("ZCARD", K),
    _words("ZSCORE", K, F),
    _more(_words("ZMSCORE", K), F),
    _words("ZRANK", K, F),
    _words("ZCOUNT", K, BOUNDS, BOUNDS),
    _optional(_words("ZRANGE", K, N, N), "WITHSCORES", "REV"),
    _optional(_words("ZRANGEBYSCORE", K, BOUNDS, BOUNDS), "WITHSCORES", "LIMIT 0 1", "LIMIT 1 -1", "LIMIT 5 2"),
    _words("ZPOPMIN", K),
    _words("ZPOPMIN", K, st.sampled_from(["0", "1", "2"])),
    _words("ZREMRANGEBYSCORE", K, BOUNDS, BOUNDS),
    _words("ZREMRANGEBYRANK", K, N, N),
)

S, G, C = STREAMS, GROUPS, CONSUMERS
_ADDS = st.one_of(
    _words("XADD", S, IDS, "a", V),
    _words("XADD", S, "*", "a", V),
    _words("XADD", S, "*", "a", V, "b", V),
    _words("XADD", S, "NOMKSTREAM", "*", "a", V),
    _words("XADD", S, "MAXLEN", st.sampled_from(["0", "1", "2", "-1"]), "*", "a", V),
    _words("XADD", S, "MAXLEN", "=", "2", "*", "a", V),
    _words("XADD", S, "MINID", IDS, "*", "a", V),
    _words("XADD", S, "*", "a"),
    _words("XADD", S, "0-0", "a", "1"),
)
_READS = st.one_of(
    _words("XREADGROUP", "GROUP", G, C, "COUNT", st.sampled_from(["1", "2"]), "STREAMS", S, ">"),
    _words("XREADGROUP", "GROUP", G, C, "STREAMS", S, st.sampled_from([">", "0", "2-1", "$"])),
    _words("XREADGROUP", "GROUP", G, C, "NOACK", "STREAMS", S, ">"),
    _words("XREADGROUP", "GROUP", G, C, "STREAMS", "s1", "s2", ">", ">"),
    _words("XREADGROUP", "GROUP", G, C, "STREAMS", "s1", "s2", "0", "0"),
    _words("XREADGROUP", "GROUP", G, C, "COUNT", "1", "BLOCK", "1", "STREAMS", S, ">"),
    _words("XREAD", "COUNT", "2", "STREAMS", S, st.sampled_from(["0", "2-1", "$", ">", "x"])),
    _words("XREAD", "STREAMS", "s1", "s2", "0", "2-1"),
    _words("XREAD", "STREAMS", "s1", "s2", "0"),
)
STREAM_COMMANDS = st.one_of(
    _ADDS,
    _ADDS,
    _READS,
    _READS,
    _words("XGROUP", "CREATE", S, G, st.sampled_from(["0", "$", "2-1", "x"]), "MKSTREAM"),
    _words("XGROUP", "CREATE", S, G, "0"),
    _words("XGROUP", "SETID", S, G, st.sampled_from(["0", "2-1", "$"])),
    _words("XGROUP", "DESTROY", S, G),
    _words("XGROUP", "CREATECONSUMER", S, G, C),
    _words("XGROUP", "DELCONSUMER", S, G, C),
    _more(_words("XACK", S, G), IDS),
    _more(_words("XDEL", S), IDS),
    _words("XLEN", S),
    _words("XRANGE", S, RANGE_IDS, RANGE_IDS),
    _words("XRANGE", S, "-", "+", "COUNT", st.sampled_from(["0", "1", "2"])),
    _words("XREVRANGE", S, RANGE_IDS, RANGE_IDS),
    _words("XREVRANGE", S, "+", "-", "COUNT", "1"),
    _words("XTRIM", S, "MAXLEN", st.sampled_from(["0", "1", "2", "5"])),
    _words("XTRIM", S, "MINID", IDS),
    _words("XTRIM", S, "MINID", "=", IDS),
    _words("XPENDING", S, G),
    _words("XPENDING", S, G, "-", "+", st.sampled_from(["1", "10"])),
    _words("XPENDING", S, G, RANGE_IDS, RANGE_IDS, "10", C),
    _words("XPENDING", S, G, "IDLE", "100000", "-", "+", "10"),
    _words("XINFO", "GROUPS", S),
    _words("XINFO", "CONSUMERS", S, G),
    _words("XCLAIM", S, G, C, st.sampled_from(["0", "100000"]), IDS, IDS),
    _optional(_words("XCLAIM", S, G, C, "0", IDS), "JUSTID", "FORCE", "RETRYCOUNT 5", "IDLE 5000"),
    _words("XAUTOCLAIM", S, G, C, st.sampled_from(["0", "100000"]), st.sampled_from(["0", "2-1", "-"])),
    _words("XAUTOCLAIM", S, G, C, "0", "0", "COUNT", "1", "JUSTID"),
    _words("DEL", S),
    _words("SET", S, "wrong"),
    _words("TYPE", S),
)
PLAIN_COMMANDS = st.one_of(STRINGS, KEYS, HASHES, LISTS, SETS, ZSETS)
