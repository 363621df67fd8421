-- Asks for a name. Rings no bell: its own is taken first, so that no claim behind it finds it silent.
CREATE PROCEDURE {do_claim}(
  IN p_name VARBINARY(1024), IN p_claim VARBINARY(16), IN p_kind VARBINARY(9), IN p_limit BIGINT, IN p_mode VARBINARY(9),
  IN p_permits BIGINT, IN p_queue TINYINT, IN p_owner MEDIUMBLOB, IN p_reason MEDIUMBLOB, IN p_lease BIGINT,
  IN p_min_hold BIGINT, IN p_once_per BIGINT)
  SQL SECURITY INVOKER
BEGIN
  DECLARE now, f, ahead, ask_in, l_expiry, l_lease, l_waiting, l_tail, r_seq BIGINT;
  DECLARE answer, l_state, l_kind, h_mode VARBINARY(9);
  DECLARE bell, l_claim VARBINARY(16);
  DECLARE h_owner, h_reason MEDIUMBLOB;
  DECLARE h_fence, h_permits, h_held, h_left BIGINT;
  DECLARE flag, early TINYINT DEFAULT 0;
  DECLARE plain TINYINT DEFAULT p_mode = 'exclusive' AND p_min_hold = 0 AND p_once_per = 0;
  DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; DO RELEASE_LOCK({bell}(p_claim)); RESIGNAL; END;
  -- A claim that is sent again on this connection has it: a bell that is taken twice must be rung twice.
  IF COALESCE(IS_USED_LOCK({bell}(p_claim)), 0) <> CONNECTION_ID() THEN DO GET_LOCK({bell}(p_claim), 0); END IF;
  SET now = {now};
  IF plain THEN
    -- The short path: the name is free. The clock was read before the row was locked, so it is read
    -- again afterwards.
    UPDATE {line} SET state = 'held', kind = p_kind, permits = 0, fence = LAST_INSERT_ID(GREATEST(fence + 1, now)),
        owner = p_owner, reason = p_reason, since = now, expiry = now + p_lease, lease = p_lease, claim = p_claim
      WHERE name = p_name AND (state = 'free' OR (state = 'held' AND waiting = 0 AND expiry <= now)) AND fence < {max_fence};
    IF ROW_COUNT() > 0 THEN SET f = LAST_INSERT_ID(), answer = 'held', early = 1; END IF;
  END IF;
  asking: LOOP
    WHILE answer IS NULL DO
      SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
      START TRANSACTION;
      SET l_state = NULL, r_seq = NULL;
      SELECT state, kind, expiry, lease, waiting, tail, claim, fence, owner, reason, since
        INTO l_state, l_kind, l_expiry, l_lease, l_waiting, l_tail, l_claim, h_fence, h_owner, h_reason, h_held
        FROM {line} WHERE name = p_name FOR UPDATE;
      SET now = {now};
      IF l_state IS NULL THEN
        -- Made outside of the transaction: two that make it at once would deadlock.
        ROLLBACK;
        IF plain THEN
          INSERT IGNORE INTO {line} (name, state, kind, fence, owner, reason, since, expiry, lease, claim)
            VALUES (p_name, 'held', p_kind, now, p_owner, p_reason, now, now + p_lease, p_lease, p_claim);
          IF ROW_COUNT() > 0 THEN SET f = now, answer = 'held', early = 1; END IF;
        ELSE
          INSERT IGNORE INTO {line} (name) VALUES (p_name);
        END IF;
      ELSE
        IF l_state = 'held' AND l_expiry > now AND l_expiry <= now + l_lease AND l_claim <> p_claim AND p_kind <> 'semaphore' THEN
          -- The second short path: one plain holder is alive, so the claim waits or is turned away.
          IF l_waiting > 0 THEN
            SELECT seq INTO r_seq FROM {claim} FORCE INDEX (by_claim) WHERE claim = p_claim AND name = p_name AND state = 'waits' LIMIT 1;
          END IF;
          IF r_seq IS NULL AND p_queue AND h_fence < {max_fence} THEN
            SET answer = 'waits', r_seq = l_tail;
            IF l_waiting = 0 THEN
              SET ahead = 0, ask_in = l_expiry - now, bell = l_claim;
            ELSE
              CALL {place}(p_name, r_seq, p_mode, p_permits, 0, now, l_expiry, l_claim, ahead, ask_in, bell, flag);
            END IF;
            INSERT INTO {claim} (name, state, seq, mode, permits, owner, reason, since, expiry, lease, claim, min_hold, once_per)
              VALUES (p_name, 'waits', r_seq, p_mode, p_permits, p_owner, p_reason, now, now + LEAST(p_lease, {longest_wait}),
                p_lease, p_claim, p_min_hold, p_once_per);
            UPDATE {line} SET waiting = waiting + 1, tail = tail + 1, kind = IF(p_kind = 'rwlock', p_kind, kind) WHERE name = p_name;
          ELSEIF r_seq IS NULL AND NOT p_queue THEN
            SET answer = 'busy', h_mode = 'exclusive', h_permits = 0, h_held = now - h_held, h_left = l_expiry - now;
            CALL {place}(p_name, {max_fence}, p_mode, p_permits, 0, now, l_expiry, l_claim, ahead, ask_in, bell, flag);
          END IF;
        END IF;
        IF answer IS NULL THEN
          CALL {step}('claim', p_name, p_claim, NULL, p_kind, p_limit, p_mode, p_permits, p_queue, p_owner, p_reason, p_lease,
            p_min_hold, p_once_per, 0, answer, f, ahead, ask_in, bell, flag);
          IF answer IN ('busy', 'soon') THEN
            SET h_owner = NULL, h_mode = NULL;
            SELECT owner, reason, 'exclusive', 0, fence, since, expiry INTO h_owner, h_reason, h_mode, h_permits, h_fence, h_held, h_left
              FROM {line} WHERE name = p_name AND state = 'held';
            IF h_mode IS NULL THEN
              SELECT owner, reason, mode, permits, fence, since, expiry INTO h_owner, h_reason, h_mode, h_permits, h_fence, h_held, h_left
                FROM {claim} WHERE name = p_name AND state = 'held' ORDER BY fence LIMIT 1;
            END IF;
            SET h_held = GREATEST(now - h_held, 0), h_left = GREATEST(h_left - now, 0);
          END IF;
        END IF;
        COMMIT;
      END IF;
    END WHILE;
    IF NOT early OR {now} <= now + 2000 THEN LEAVE asking; END IF;
    SET early = 0, now = {now};
    UPDATE {line} SET since = now, expiry = now + p_lease WHERE name = p_name AND state = 'held' AND claim = p_claim AND fence = f;
    IF ROW_COUNT() > 0 THEN LEAVE asking; END IF;
    -- It waited for the row for longer than its lease, and another claim has it already.
    SET answer = NULL, f = NULL;
  END LOOP asking;
  IF answer = 'held' THEN
    SELECT answer, f;
  ELSEIF answer = 'waits' THEN
    SELECT answer, f, ahead, ask_in, bell, flag;
  ELSE
    DO RELEASE_LOCK({bell}(p_claim));
    SELECT answer, f, ahead, ask_in, bell, flag, h_mode, h_permits, h_fence, h_held, h_left, h_owner, h_reason;
  END IF;
END
