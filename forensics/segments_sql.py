"""The time model of `shared/timeline.py` as SQL: the same integers, for a million requests at once.

Theory of operation. `shared.timeline.segments` is the model; this is a translation, and a property test holds the two
equal to the nanosecond. Each step is a SELECT around the one before it, and names what the Python names, so the two can
be read side by side. Integers stay integers (BIGINT); `>> 1` halves towards minus infinity as Python's `// 2` does,
where SQL's division would cut towards zero. The one comparison that Python makes in floating point is made so here.

The relation it is given has g0..g8, w0..w8, lost_us, and theta_lo_ns and theta_hi_ns, the bounds of the worker's clock
less the gateway's. Stamps that were not reached are 0, nothing is NULL.
"""

from shared.timeline import CLASS_OF, THETA_UNCERTAINTY_MAX, Class

SEGMENTS: tuple[str, ...] = tuple(CLASS_OF)
"""Every segment in the order of a request's life; its column is NAME_ns."""

CLASSES: tuple[str, ...] = tuple(kind.value for kind in Class)
"""Every class; its column is NAME_ns."""


def reached(*stamps: str) -> str:
    """The first of these stamps that is not 0; 0 when none is."""
    return f"coalesce({', '.join(f'nullif({stamp}, 0)' for stamp in stamps)}, 0)"


def since(stamp: str, *before: str) -> str:
    """The time up to a stamp from the first of `before` that was reached; 0 when it was not reached itself."""
    return f"CASE WHEN {stamp} <> 0 THEN {stamp} - {reached(*before)} ELSE 0 END"


_STEPS = (
    # What the request came to. g4 is beside the way: it may come after the answer.
    f"""{reached("g8", "g7", "g6", "g5", "g3", "g2", "g1", "g0")} - g0 AS e2e_ns,
        g5 <> 0 AND g3 <> 0 AND w8 <> 0 AS answered,
        (g5 - g3) - (w8 - w1) AS _hop,
        -- Causality narrows the offset: nothing arrives before it was sent, in either direction.
        greatest(theta_lo_ns, w8 - g5) AS _lo, least(theta_hi_ns, w1 - g3) AS _hi,
        -- Without an answer, a withdrawal may have ended (g5) after its handler went on (g6).
        NOT (g5 <> 0 AND g3 <> 0 AND w8 <> 0) AND 0 < g6 AND g6 < g5 AS _withdrawn""",
    """CASE WHEN _lo > _hi THEN theta_lo_ns ELSE _lo END AS _lo2,
       CASE WHEN _lo > _hi THEN theta_hi_ns ELSE _hi END AS _hi2,
       CASE WHEN _withdrawn THEN g6 ELSE g5 END AS _g5, CASE WHEN _withdrawn THEN g5 ELSE g6 END AS _g6""",
    f"""(_lo2 + _hi2) >> 1 AS _theta, (_hi2 - _lo2 + 1) >> 1 AS _theta_error,
        CASE WHEN answered THEN _g5 WHEN g3 <> 0 THEN {reached("_g5", "_g6", "g7", "g8")} ELSE _g5 END AS _ended""",
    f"_theta_error::DOUBLE > {THETA_UNCERTAINTY_MAX!r}::DOUBLE * e2e_ns::DOUBLE AS _unsplit, g3 + _theta AS _sent",
    "CASE WHEN g4 <> 0 THEN greatest(_sent, least(g4 + _theta, w1)) ELSE greatest(_sent, w1) END AS _latest",
    "(_sent + _latest) >> 1 AS _has_it, ((_latest - _sent + 1) >> 1) + _theta_error AS _error",
    """CASE WHEN _unsplit THEN greatest(0, least(lost_us * 1000, _hop))
            WHEN lost_us <> 0 THEN greatest(0, least(lost_us * 1000, w1 - _has_it)) ELSE 0 END AS _lost,
       greatest(least(w0, w1), _has_it) AS _asked""",
    # The segments.
    f"""{since("g1", "g0")} AS recv_ns,
        {since("g2", "g1", "g0")} AS pre_ns,
        CASE WHEN g3 <> 0 THEN g3 ELSE CASE WHEN answered THEN 0 ELSE _ended END END AS _handed,
        {reached("g2", "g1", "g0")} AS _before,
        CASE WHEN answered AND NOT _unsplit THEN _has_it - _sent ELSE 0 END AS uplink_ns,
        CASE WHEN NOT answered OR _unsplit THEN 0
             WHEN lost_us <> 0 THEN greatest(0, w1 - _has_it) - _lost ELSE _asked - _has_it END AS stream_wait_ns,
        CASE WHEN answered THEN _lost ELSE 0 END AS lost_attempt_ns,
        CASE WHEN NOT answered OR _unsplit THEN 0
             WHEN lost_us <> 0 THEN least(0, w1 - _has_it) ELSE w1 - _asked END AS deliver_ns,
        CASE WHEN answered THEN {since("w2", "w1")} ELSE 0 END AS pull_ns,
        CASE WHEN answered THEN {since("w3", "w2", "w1")} ELSE 0 END AS batch_wait_ns,
        CASE WHEN answered THEN {since("w4", "w3", "w2", "w1")} ELSE 0 END AS dispatch_ns,
        CASE WHEN answered THEN {since("w5", "w4", "w3", "w2", "w1")} ELSE 0 END AS collate_ns,
        CASE WHEN answered THEN {since("w6", "w5", "w4", "w3", "w2", "w1")} ELSE 0 END AS forward_ns,
        CASE WHEN answered THEN {since("w7", "w6", "w5", "w4", "w3", "w2", "w1")} ELSE 0 END AS post_ns,
        CASE WHEN answered THEN {since("w8", "w7", "w6", "w5", "w4", "w3", "w2", "w1")} ELSE 0 END AS out_loop_ns,
        CASE WHEN answered AND NOT _unsplit THEN g5 + _theta - w8 ELSE 0 END AS downlink_ns,
        CASE WHEN answered AND _unsplit THEN _hop - _lost ELSE 0 END AS unexplained_ns,
        CASE WHEN answered THEN _hop ELSE 0 END AS hop_ns,
        CASE WHEN answered AND NOT _unsplit THEN _error ELSE 0 END AS hop_error_ns,
        CASE WHEN answered THEN _theta_error ELSE 0 END AS theta_error_ns""",
    f"""{since("_handed", "_before")} AS gw_loop_ns,
        CASE WHEN answered OR g3 = 0 OR _ended = 0 THEN 0 ELSE _ended - g3 END AS no_answer_ns,
        -- Where the handler went on from: the answer, else what ended the waiting, else the last stamp before.
        CASE WHEN answered THEN g5 ELSE {reached("_ended", "g3", "_before")} END AS _at""",
    f"""{since("_g6", "_at")} AS gw_wake_ns,
        {since("g7", "_g6", "_at")} AS render_ns,
        {since("g8", "g7", "_g6", "_at")} AS respond_ns""",
)
_HELPERS = (
    "_hop", "_lo", "_hi", "_withdrawn", "_lo2", "_hi2", "_g5", "_g6", "_theta", "_theta_error", "_ended", "_unsplit",
    "_sent", "_latest", "_has_it", "_error", "_lost", "_asked", "_handed", "_before", "_at",
)  # fmt: skip


def with_segments(relation: str) -> str:
    """A SELECT of all that `relation` (a name, or a SELECT in brackets) has, and of e2e_ns, answered, hop_ns, every
    segment, every class, and how far the borders may lie off: hop_error_ns (of uplink and what borders on it) and
    theta_error_ns (of downlink, or of unexplained). The segments sum to e2e_ns, and so do the classes."""
    for step in _STEPS:
        relation = f"(SELECT *, {step} FROM {relation})"
    sums = [
        f"{' + '.join(f'{name}_ns' for name, kind in CLASS_OF.items() if kind is of)} AS {of.value}_ns" for of in Class
    ]
    return f"SELECT * EXCLUDE ({', '.join(_HELPERS)}), {', '.join(sums)} FROM {relation}"
