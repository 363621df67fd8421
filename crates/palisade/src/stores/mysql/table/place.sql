-- The place of a waiter, or of a claim that may not wait (p_seq is then the highest number): how many
-- are ahead (NULL past 64), in how long time alone would admit it, and the bell to wait for. p_way and
-- p_holder are of a line whose one holder is in its own row, and NULL otherwise.
--
-- o_flag says whether the holders would let it in (2), or whether several of them may do so by
-- releasing, so that no one bell is enough (1).
CREATE PROCEDURE {place}(
  IN p_name VARBINARY(1024), IN p_seq BIGINT, IN p_mode VARBINARY(9), IN p_permits BIGINT, IN p_limit BIGINT,
  IN p_now BIGINT, IN p_way BIGINT, IN p_holder VARBINARY(16),
  OUT o_ahead BIGINT, OUT o_ask_in BIGINT, OUT o_bell VARBINARY(16), OUT o_flag TINYINT)
  SQL SECURITY INVOKER
BEGIN
  DECLARE seen, dead, clear, way, holders, exclusive, taken BIGINT DEFAULT 0;
  DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
  SET o_ahead = NULL, o_ask_in = NULL, o_bell = NULL, o_flag = 0, way = p_way;
  IF p_way IS NULL THEN
    SELECT COUNT(*), COALESCE(SUM(mode <> 'shared'), 0), COALESCE(SUM(permits), 0),
        COALESCE(MAX(IF(state = 'closed', keep_until, GREATEST(expiry, keep_until))), p_now)
      INTO holders, exclusive, taken, way
      FROM {claim} WHERE name = p_name AND state IN ('closed', 'held');
    IF holders = 0 OR (p_mode = 'shared' AND exclusive = 0) OR (p_mode = 'permits' AND taken + p_permits <= p_limit) THEN
      SET o_flag = 2, way = p_now;
    ELSEIF p_mode = 'permits' THEN
      SET o_flag = IF(holders > 1, 1, 0);
      SELECT MIN(ends) INTO way FROM (
        SELECT ends, SUM(permits) OVER (ORDER BY ends) AS freed FROM (
          SELECT permits, IF(state = 'closed', keep_until, GREATEST(expiry, keep_until)) AS ends
          FROM {claim} WHERE name = p_name AND state IN ('closed', 'held')) AS h) AS f
        WHERE p_limit - taken + freed >= p_permits;
    END IF;
  END IF;
  SELECT COUNT(*), COALESCE(SUM(expiry <= p_now), 0), COALESCE(MAX(expiry), 0) INTO seen, dead, clear FROM (
    SELECT expiry FROM {claim} WHERE name = p_name AND state = 'waits' AND seq < p_seq ORDER BY seq DESC LIMIT 65) AS a;
  IF seen <= 64 THEN
    SET o_ahead = seen - dead, o_ask_in = GREATEST(way, clear, p_now) - p_now;
  END IF;
  -- The nearest waiter ahead that cannot hold together with this one: its bell rings first.
  IF seen > dead THEN
    SELECT claim INTO o_bell FROM {claim} WHERE name = p_name AND state = 'waits' AND seq < p_seq AND expiry > p_now
      AND (p_mode = 'exclusive' OR mode = 'exclusive' OR (p_mode = 'permits' AND permits + p_permits > p_limit))
      ORDER BY seq DESC LIMIT 1;
  END IF;
  IF o_bell IS NOT NULL THEN
    -- One bell is enough.
    SET o_flag = IF(o_flag = 2, 2, 0);
  ELSEIF p_holder IS NOT NULL THEN
    SET o_bell = p_holder;
  ELSEIF p_mode <> 'permits' OR seen = dead THEN
    SELECT claim INTO o_bell FROM {claim} WHERE name = p_name AND state = 'held' ORDER BY fence LIMIT 1;
  END IF;
END
