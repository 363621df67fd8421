-- Applies a verb to one lock. The owner of a lock of ours is <claim>.<fence>.<label>, any other value is that of a peer. Spans are
-- microseconds. The name is compared as the column of the lock table compares it.
CREATE PROCEDURE {step}(
  IN p_verb VARCHAR(8), IN p_name VARCHAR(512) CHARACTER SET {charset} COLLATE {collation},
  IN p_claim VARCHAR(32) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin, IN p_fence BIGINT,
  IN p_label VARCHAR(512) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin, IN p_lease BIGINT, IN p_unit BIGINT, IN p_zone VARCHAR(8))
  SQL SECURITY INVOKER
BEGIN
  DECLARE own, holder VARCHAR(512) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
  DECLARE l_claim VARCHAR(32) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
  DECLARE n, us, l_fence BIGINT;
  DECLARE v_now, v_until, v_at, v_end, v_lease DATETIME(6);
  DECLARE done VARCHAR(8);
  DECLARE alive, mine, locked, tries, l_revoked TINYINT DEFAULT 0;
  DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  SET own = CONCAT(p_claim, '.', IF(p_fence > 0, CONCAT(p_fence, '.'), ''));
  look: LOOP
    SET holder = NULL, v_until = NULL, v_at = NULL;
    -- A claim that finds the name taken locks nothing and writes nothing.
    IF locked THEN
      SELECT {owner}, {until}, {at} INTO holder, v_until, v_at FROM {table} WHERE {name} = p_name FOR UPDATE;
    ELSE
      SELECT {owner}, {until}, {at} INTO holder, v_until, v_at FROM {table} WHERE {name} = p_name;
    END IF;
    -- A statement of its own, behind the lock: a time from before it would be too early by the wait.
    SET us = {now}, v_now = IF(p_zone = 'utc', UTC_TIMESTAMP(6), NOW(6));
    SET alive = COALESCE(v_until > v_now, 0), mine = COALESCE(LEFT(holder, CHAR_LENGTH(own)) = own, 0);
    IF p_verb IN ('show', 'sweep') OR (p_verb = 'claim' AND alive AND NOT mine) OR (locked AND (holder IS NOT NULL OR p_verb <> 'claim')) THEN
      LEAVE look;
    END IF;
    IF NOT locked THEN
      SET locked = 1;
      SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
      START TRANSACTION;
    ELSE
      -- Seen by no other session before it is ours.
      INSERT IGNORE INTO {table} ({name}, {owner}, {until}, {at}) VALUES (p_name, '', '1970-01-02', '1970-01-02');
      IF ROW_COUNT() = 0 THEN
        ROLLBACK;
        SET locked = 0, tries = tries + 1;
        IF tries > 50 THEN
          SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'the row of the lock is neither found nor inserted: was the collation of the table changed after its routine was made?';
        END IF;
      END IF;
    END IF;
  END LOOP look;
  SET n = TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', v_now);
  -- The column rounds: a lease must not become shorter by that, nor a lock that has ended look held.
  SET v_end = TIMESTAMPADD(MICROSECOND, n DIV p_unit * p_unit, TIMESTAMP'1970-01-01 00:00:00'),
    v_lease = TIMESTAMPADD(MICROSECOND, (n + p_lease + p_unit - 1) DIV p_unit * p_unit, TIMESTAMP'1970-01-01 00:00:00');
  SELECT fence, claim, revoked INTO l_fence, l_claim, l_revoked FROM {fence} WHERE name = p_name;

  IF p_verb = 'sweep' THEN
    {clean}
    DELETE FROM {fence} WHERE GREATEST(fence, used) < us - 700000000 AND NOT EXISTS (SELECT 1 FROM {table} AS t WHERE t.{name} = {fence}.name);
    SET done = 'done';
  ELSEIF p_verb = 'show' OR (p_verb = 'claim' AND alive AND NOT mine) THEN
    SET done = IF(alive, 'taken', 'free');
  ELSEIF p_verb IN ('claim', 'renew') AND alive AND mine THEN
    -- Extends, never shortens.
    UPDATE {table} SET {until} = v_lease WHERE {name} = p_name AND {until} < v_lease;
    SET done = 'held';
  ELSEIF p_verb = 'claim' THEN
    SET l_fence = GREATEST(COALESCE(l_fence, 0) + 1, us);
    INSERT INTO {fence} (name, fence, claim) VALUES (p_name, l_fence, p_claim)
      ON DUPLICATE KEY UPDATE fence = l_fence, claim = p_claim, revoked = 0;
    SET holder = CONCAT(p_claim, '.', l_fence, '.', p_label);
    UPDATE {table} SET {owner} = holder, {until} = v_lease, {at} = v_now WHERE {name} = p_name;
    SET done = 'held';
  ELSEIF p_verb = 'renew' THEN
    SET done = CASE WHEN l_claim = p_claim AND l_revoked THEN 'revoked' WHEN alive THEN 'taken'
      WHEN p_fence > 0 AND p_fence <= l_fence THEN 'ended' ELSE 'unknown' END;
  ELSEIF p_verb = 'release' THEN
    SET done = IF(alive AND mine, 'done', 'lost');
    IF mine THEN {end} END IF;
  ELSEIF NOT alive THEN
    SET done = 'free';
  ELSEIF p_fence = IF(holder REGEXP '^[0-9a-f]{32}[.][0-9]{1,18}[.]', CAST(SUBSTRING_INDEX(SUBSTRING_INDEX(holder, '.', 2), '.', -1) AS SIGNED), 0) THEN
    {end}
    UPDATE {fence} SET revoked = 1 WHERE name = p_name AND fence = p_fence;
    SET done = 'done';
  ELSE
    SET done = 'other';
  END IF;
  IF locked THEN COMMIT; END IF;
  SELECT done, holder, COALESCE(IF(v_at <= v_now, TIMESTAMPDIFF(MICROSECOND, v_at, v_now), -1), -1),
    IF(alive, TIMESTAMPDIFF(MICROSECOND, v_now, v_until), -1);
END
