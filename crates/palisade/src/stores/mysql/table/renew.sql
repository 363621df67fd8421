-- Renews many claims in one transaction. Of each, p_list has the length of its name in 2 bytes, 16
-- bytes of claim, 8 of fence (0 for none), 1 that says whether to take its bell, and its name. They
-- are sorted by name, so that two such lists do not deadlock. The reply has one line for each.
--
-- With p_skip it does not wait for a row that another session has locked, and answers that it is locked.
CREATE PROCEDURE {renew}(IN p_list LONGBLOB, IN p_skip TINYINT)
  SQL SECURITY INVOKER
BEGIN
  DECLARE at BIGINT DEFAULT 1;
  DECLARE size, now, f, ahead, ask_in, l_expiry, l_lease, r_seq, r_lease, r_expiry, r_permits BIGINT;
  DECLARE v_name VARBINARY(1024);
  DECLARE v_claim, l_claim, bell VARBINARY(16);
  DECLARE v_fence BIGINT;
  DECLARE answer, l_state, r_mode VARBINARY(9);
  DECLARE flag, rings TINYINT;
  DECLARE replies LONGBLOB DEFAULT '';
  DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION;
  WHILE at < LENGTH(p_list) DO
    SET size = CONV(HEX(SUBSTRING(p_list, at, 2)), 16, 10), v_claim = SUBSTRING(p_list, at + 2, 16),
      v_fence = NULLIF(CAST(CONV(HEX(SUBSTRING(p_list, at + 18, 8)), 16, 10) AS SIGNED), 0),
      rings = ORD(SUBSTRING(p_list, at + 26, 1)) = 1, v_name = SUBSTRING(p_list, at + 27, size), at = at + 27 + size;
    IF rings AND COALESCE(IS_USED_LOCK({bell}(v_claim)), 0) <> CONNECTION_ID() THEN DO GET_LOCK({bell}(v_claim), 0); END IF;
    SET answer = NULL, l_state = NULL, f = NULL, ahead = NULL, ask_in = NULL, bell = NULL, flag = 0, r_seq = NULL;
    IF p_skip THEN
      SELECT state, claim, expiry, lease, fence INTO l_state, l_claim, l_expiry, l_lease, f
        FROM {line} WHERE name = v_name FOR UPDATE SKIP LOCKED;
    ELSE
      SELECT state, claim, expiry, lease, fence INTO l_state, l_claim, l_expiry, l_lease, f
        FROM {line} WHERE name = v_name FOR UPDATE;
    END IF;
    IF p_skip AND l_state IS NULL THEN
      -- A statement of its own: within an IF it would wait for the row, too.
      SELECT 'locked' INTO answer FROM {line} WHERE name = v_name;
    END IF;
    SET now = {now};
    IF answer IS NOT NULL THEN
      SET f = NULL;
    ELSEIF l_state IS NULL THEN
      SET answer = 'unknown', f = NULL;
    ELSEIF l_state = 'held' AND l_expiry > now AND l_expiry <= now + l_lease THEN
      -- The short paths: one plain holder is alive.
      IF l_claim = v_claim AND (v_fence IS NULL OR v_fence = f) THEN
        SET answer = 'held';
        UPDATE {line} SET expiry = now + lease WHERE name = v_name;
      ELSEIF v_fence IS NULL THEN
        SELECT seq, lease, expiry, mode, permits INTO r_seq, r_lease, r_expiry, r_mode, r_permits
          FROM {claim} FORCE INDEX (by_claim) WHERE claim = v_claim AND name = v_name AND state = 'waits' LIMIT 1;
        IF r_seq IS NOT NULL AND r_expiry > now THEN
          SET answer = 'waits';
          UPDATE {claim} SET expiry = now + LEAST(lease, {longest_wait}) WHERE name = v_name AND state = 'waits' AND seq = r_seq;
          CALL {place}(v_name, r_seq, r_mode, r_permits, 0, now, l_expiry, l_claim, ahead, ask_in, bell, flag);
        END IF;
      END IF;
    END IF;
    IF answer IS NULL THEN
      CALL {step}('renew', v_name, v_claim, v_fence, NULL, 0, NULL, 0, 0, NULL, NULL, 0, 0, 0, 0, answer, f, ahead, ask_in, bell, flag);
    END IF;
    SET replies = CONCAT(replies, answer, ',', COALESCE(f, ''), ',', COALESCE(ahead, ''), ',', COALESCE(ask_in, ''), ',',
      COALESCE(HEX(bell), ''), ',', flag, '\n');
  END WHILE;
  COMMIT;
  SELECT replies;
END
