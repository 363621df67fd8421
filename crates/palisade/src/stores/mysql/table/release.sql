-- Ends a claim, and rings its bell once that is committed.
CREATE PROCEDURE {release}(
  IN p_ending VARBINARY(9), IN p_name VARBINARY(1024), IN p_claim VARBINARY(16), IN p_fence BIGINT, IN p_keep BIGINT)
  SQL SECURITY INVOKER
BEGIN
  DECLARE now, f, ahead, ask_in, l_expiry, l_fence, l_waiting, w_seq, w_expiry, w_plain, w_lease BIGINT;
  DECLARE answer, l_state VARBINARY(9);
  DECLARE l_claim, bell VARBINARY(16);
  DECLARE flag TINYINT;
  DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  IF p_ending = 'release' THEN
    -- The short path: the one plain holder releases, and no claim waits.
    SET now = {now};
    UPDATE {line} SET state = 'free', kind = NULL, owner = NULL, reason = NULL, since = 0, expiry = now, lease = 0, claim = NULL
      WHERE name = p_name AND state = 'held' AND claim = p_claim AND (p_fence IS NULL OR fence = p_fence) AND waiting = 0 AND expiry > now;
    IF ROW_COUNT() > 0 THEN SET answer = 'done'; END IF;
  END IF;
  IF answer IS NULL THEN
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    START TRANSACTION;
    SELECT state, claim, expiry, fence, waiting INTO l_state, l_claim, l_expiry, l_fence, l_waiting
      FROM {line} WHERE name = p_name FOR UPDATE;
    SET now = {now};
    IF l_state IS NULL THEN
      SET answer = 'lost';
    ELSEIF p_ending = 'release' AND l_state = 'held' AND l_claim = p_claim AND (p_fence IS NULL OR l_fence = p_fence)
        AND l_expiry > now AND l_waiting > 0 AND l_fence < {max_fence} THEN
      -- The second short path: it hands over to a plain waiter. The dead before it are dropped.
      hand_off: LOOP
        SET w_seq = NULL;
        SELECT seq, expiry, lease, mode = 'exclusive' AND min_hold = 0 AND once_per = 0 INTO w_seq, w_expiry, w_lease, w_plain
          FROM {claim} WHERE name = p_name AND state = 'waits' ORDER BY seq LIMIT 1;
        IF w_seq IS NULL OR (w_expiry > now AND NOT w_plain) OR w_expiry > now + LEAST(w_lease, {longest_wait}) THEN
          LEAVE hand_off;
        END IF;
        IF w_expiry > now THEN
          UPDATE {line} AS l JOIN {claim} AS c ON c.name = l.name AND c.state = 'waits' AND c.seq = w_seq
            SET l.fence = GREATEST(l.fence + 1, now), l.owner = c.owner, l.reason = c.reason, l.since = now,
              l.expiry = c.expiry, l.lease = c.lease, l.claim = c.claim, l.waiting = l_waiting - 1
            WHERE l.name = p_name;
          SET answer = 'done';
        ELSE
          SET l_waiting = l_waiting - 1;
        END IF;
        DELETE FROM {claim} WHERE name = p_name AND state = 'waits' AND seq = w_seq;
        IF answer IS NOT NULL THEN LEAVE hand_off; END IF;
      END LOOP hand_off;
      IF answer IS NULL THEN UPDATE {line} SET waiting = l_waiting WHERE name = p_name; END IF;
    END IF;
    IF answer IS NULL THEN
      CALL {step}(p_ending, p_name, p_claim, p_fence, NULL, 0, NULL, 0, 0, NULL, NULL, 0, 0, 0, p_keep,
        answer, f, ahead, ask_in, bell, flag);
    END IF;
    COMMIT;
  END IF;
  DO RELEASE_LOCK({bell}(p_claim));
  SELECT answer;
END
