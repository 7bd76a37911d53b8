-- For each of the base snapshots: which positions can have become visible since. Those above `bound.g`.
-- `ended` is the lowest transaction id that was in progress for the base and has ended for this
-- statement's own snapshot, or the base's xmax (ids at or above it were not known to the base, running
-- ones among them). Every mark at or below it says above what position such a transaction draws.
bound AS MATERIALIZED (
    SELECT base.number - 1 AS base,
           (SELECT coalesce(max(mark.q), 0)
              FROM unnest($2::bigint[], $3::bigint[]) AS mark(q, xid)
             WHERE mark.xid <= coalesce(
                       (SELECT min(xid::text::bigint)
                          FROM pg_snapshot_xip(base.snapshot::pg_snapshot) AS xid
                         WHERE pg_visible_in_snapshot(xid, pg_current_snapshot())),
                       pg_snapshot_xmax(base.snapshot::pg_snapshot)::text::bigint)) AS g
      FROM unnest($1::text[]) WITH ORDINALITY AS base(snapshot, number)
)
