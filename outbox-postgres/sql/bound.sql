-- Which positions can have become visible since the base snapshot: those above `bound.g`.
-- `ended` is the lowest transaction id that was in progress for the base and has ended for this
-- statement's own snapshot, or the base's xmax (ids at or above it were not known to the base, running
-- ones among them). Every mark at or below it says above what position such a transaction draws.
ended AS MATERIALIZED (
    SELECT coalesce(
        (SELECT min(xid::text::bigint)
           FROM pg_snapshot_xip($1::pg_snapshot) AS xid
          WHERE pg_visible_in_snapshot(xid, pg_current_snapshot())),
        pg_snapshot_xmax($1::pg_snapshot)::text::bigint) AS xid
),
bound AS MATERIALIZED (
    SELECT coalesce(max(mark.q), 0) AS g
      FROM unnest($2::bigint[], $3::bigint[]) AS mark(q, xid)
     WHERE mark.xid <= (SELECT ended.xid FROM ended)
)
