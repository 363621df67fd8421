-- Reads the lines of a page: names, holders, waiters and marks, by one clock.
WITH clock AS MATERIALIZED (SELECT clock_timestamp() AS n),
page AS MATERIALIZED (
  SELECT l.* FROM @line@ l
  WHERE CASE WHEN $1 THEN l.name = $2 ELSE starts_with(l.name, $2) AND l.name > $3 END
  ORDER BY l.name LIMIT $4
),
parts AS (
  SELECT p.name, 0 AS part, 0::bigint AS place, p.kind AS word, p.capacity AS number, NULL::text AS owner, NULL::text AS reason,
    0::bigint AS fence, CASE WHEN p.mark_at + p.mark_span > n THEN n - p.mark_at END AS one,
    CASE WHEN p.mark_at + p.mark_span > n THEN p.mark_at + p.mark_span - n END AS two,
    CASE WHEN p.seal_until > n THEN p.seal_until - n END AS three
  FROM page p, clock
  UNION ALL
  SELECT h.name, 1, h.fence, h.mode, h.permits, h.owner, h.reason, h.fence, n - h.since,
    CASE WHEN h.ghost OR h.expiry <= n THEN interval '0' ELSE h.expiry - n END, CASE WHEN h.keep_until > n THEN h.keep_until - n END
  FROM page p JOIN @holder@ h ON h.name = p.name, clock
  WHERE (NOT h.ghost AND h.expiry > n) OR h.keep_until > n
  UNION ALL
  SELECT w.name, 2, w.seq, w.mode, w.permits, w.owner, w.reason, 0, n - w.since, NULL, NULL
  FROM page p JOIN @waiter@ w ON w.name = p.name, clock
  WHERE w.expiry > n
)
SELECT name, part, word, number, owner, reason, fence,
  CASE WHEN one IS NULL THEN -1 ELSE greatest((extract(epoch FROM one) * 1000000)::bigint, 0) END,
  CASE WHEN two IS NULL THEN -1 ELSE greatest((extract(epoch FROM two) * 1000000)::bigint, 0) END,
  CASE WHEN three IS NULL THEN -1 ELSE greatest((extract(epoch FROM three) * 1000000)::bigint, 0) END
FROM parts ORDER BY name, part, place
