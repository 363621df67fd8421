-- One event on a line whose row exists, inside the caller's transaction: everything that the short
-- paths of the verbs do not handle. The rules are those of crate::line.
CREATE PROCEDURE {step}(
  IN p_verb VARBINARY(9), IN p_name VARBINARY(1024), IN p_claim VARBINARY(16), IN p_fence BIGINT,
  IN p_kind VARBINARY(9), IN p_limit BIGINT, IN p_mode VARBINARY(9), IN p_permits BIGINT, IN p_queue TINYINT,
  IN p_owner MEDIUMBLOB, IN p_reason MEDIUMBLOB, IN p_lease BIGINT, IN p_min_hold BIGINT, IN p_once_per BIGINT,
  IN p_keep BIGINT,
  OUT o_answer VARBINARY(9), OUT o_fence BIGINT, OUT o_ahead BIGINT, OUT o_ask_in BIGINT, OUT o_bell VARBINARY(16),
  OUT o_flag TINYINT)
  SQL SECURITY INVOKER
BEGIN
  DECLARE now, l_limit, l_fence, l_waiting, l_tail, m_at, m_span, m_fence, s_until, s_span BIGINT DEFAULT 0;
  DECLARE l_state, l_kind, w_mode, r_mode VARBINARY(9);
  DECLARE s_by VARBINARY(16);
  DECLARE r_seq, r_fence, r_expiry, r_lease, r_permits, b_at, b_span, b_fence BIGINT;
  DECLARE w_seq, w_expiry, w_permits, w_min_hold, w_once_per, w_lease BIGINT;
  DECLARE holders, exclusive, taken, acted, plain BIGINT DEFAULT 0;
  DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
  SELECT state, kind, permits, fence, waiting, tail, mark_at, mark_span, mark_fence, seal_until, seal_span, seal_by
    INTO l_state, l_kind, l_limit, l_fence, l_waiting, l_tail, m_at, m_span, m_fence, s_until, s_span, s_by
    FROM {line} WHERE name = p_name FOR UPDATE;
  SET now = {now}, o_fence = NULL, o_ahead = NULL, o_ask_in = NULL, o_bell = NULL, o_flag = 0;
  IF l_state = 'held' THEN
    INSERT INTO {claim} (name, state, seq, fence, mode, permits, owner, reason, since, expiry, lease, claim)
      SELECT name, 'held', tail, fence, 'exclusive', 0, owner, reason, since, expiry, lease, claim FROM {line} WHERE name = p_name;
    SET l_tail = l_tail + 1;
  END IF;

  -- What lies further ahead than its span was written before the clock went back.
  UPDATE {claim} SET expiry = LEAST(expiry, now + lease), keep_until = LEAST(keep_until, now + min_hold), since = LEAST(since, now)
    WHERE name = p_name AND state IN ('closed', 'gone', 'held') AND (expiry > now + lease OR keep_until > now + min_hold);
  SET m_at = LEAST(m_at, now), s_until = LEAST(s_until, now + s_span);

  -- What has expired.
  UPDATE {claim} SET state = 'closed' WHERE name = p_name AND state = 'held' AND expiry <= now;
  DELETE FROM {claim} WHERE name = p_name AND state = 'closed' AND keep_until <= now;
  DELETE FROM {claim} WHERE name = p_name AND state = 'gone' AND expiry <= now;
  IF m_at + m_span <= now THEN SET m_at = 0, m_span = 0, m_fence = 0; END IF;
  IF s_until <= now THEN SET s_until = 0, s_span = 0, s_by = NULL; END IF;

  -- Hand off, act, hand off.
  event: LOOP
    hand_off: LOOP
      SELECT COUNT(*), COALESCE(SUM(mode <> 'shared'), 0), COALESCE(SUM(permits), 0) INTO holders, exclusive, taken
        FROM {claim} WHERE name = p_name AND state IN ('closed', 'held');
      IF l_waiting = 0 THEN LEAVE hand_off; END IF;
      SET w_seq = NULL;
      SELECT seq, expiry, mode, permits, min_hold, once_per, lease
        INTO w_seq, w_expiry, w_mode, w_permits, w_min_hold, w_once_per, w_lease
        FROM {claim} WHERE name = p_name AND state = 'waits' ORDER BY seq LIMIT 1;
      IF w_seq IS NULL THEN
        -- Another program deleted rows of ours: those waiters are gone.
        SET l_waiting = 0;
      ELSEIF w_expiry <= now THEN
        DELETE FROM {claim} WHERE name = p_name AND state = 'waits' AND seq = w_seq;
        SET l_waiting = l_waiting - 1;
      ELSEIF w_expiry > now + LEAST(w_lease, {longest_wait}) THEN
        -- Written before the clock went back, as those behind it may be, of which some may be dead.
        UPDATE {claim} SET expiry = LEAST(expiry, now + LEAST(lease, {longest_wait})) WHERE name = p_name AND state = 'waits';
      ELSEIF l_fence >= {max_fence} OR NOT (holders = 0 OR (w_mode = 'shared' AND exclusive = 0)
          OR (w_mode = 'permits' AND taken + w_permits <= l_limit)) THEN
        LEAVE hand_off;
      ELSE
        SET l_waiting = l_waiting - 1;
        IF w_once_per > 0 AND now < m_at + LEAST(w_once_per, m_span) THEN
          UPDATE {claim} SET state = 'gone', why = 'too soon', expiry = w_expiry
            WHERE name = p_name AND state = 'waits' AND seq = w_seq;
        ELSE
          SET l_fence = GREATEST(l_fence + 1, now);
          UPDATE {claim} SET state = 'held', fence = l_fence, since = now, expiry = w_expiry,
              keep_until = IF(w_min_hold > 0, now + w_min_hold, 0),
              before_at = IF(w_once_per > 0, m_at, 0), before_span = IF(w_once_per > 0, m_span, 0),
              before_fence = IF(w_once_per > 0, m_fence, 0)
            WHERE name = p_name AND state = 'waits' AND seq = w_seq;
          IF w_once_per > 0 THEN SET m_at = now, m_span = w_once_per, m_fence = l_fence; END IF;
        END IF;
      END IF;
    END LOOP hand_off;
    IF holders = 0 AND l_waiting = 0 THEN SET l_kind = NULL, l_limit = 0; END IF;
    IF acted THEN LEAVE event; END IF;
    SET acted = 1;

    IF p_verb = 'claim' AND l_kind IS NOT NULL AND (l_kind = 'semaphore' OR p_kind = 'semaphore')
        AND NOT (l_kind = p_kind AND l_limit = p_limit) THEN
      SET o_answer = 'kind', o_bell = l_kind, o_fence = l_limit;
      ITERATE event;
    END IF;

    -- The claim's own row: as a holder, or as a waiter. A claim with a fence does not wait.
    SET r_seq = NULL, o_answer = NULL;
    IF p_claim IS NOT NULL THEN
      SELECT seq, fence, expiry, lease, mode, permits INTO r_seq, r_fence, r_expiry, r_lease, r_mode, r_permits
        FROM {claim} FORCE INDEX (by_claim)
        WHERE claim = p_claim AND name = p_name AND state = 'held' AND (p_fence IS NULL OR fence = p_fence) LIMIT 1;
      IF r_seq IS NOT NULL THEN
        SET o_answer = 'held';
      ELSEIF p_fence IS NULL THEN
        SELECT seq, expiry, lease, mode, permits INTO r_seq, r_expiry, r_lease, r_mode, r_permits
          FROM {claim} FORCE INDEX (by_claim) WHERE claim = p_claim AND name = p_name AND state = 'waits' LIMIT 1;
        IF r_seq IS NOT NULL AND r_expiry <= now THEN
          DELETE FROM {claim} WHERE name = p_name AND state = 'waits' AND seq = r_seq;
          SET l_waiting = l_waiting - 1;
        ELSEIF r_seq IS NOT NULL THEN
          SET o_answer = 'waits';
        END IF;
      END IF;
    END IF;

    IF p_verb IN ('claim', 'renew', 'downgrade', 'proclaim') AND o_answer = 'held' THEN
      IF p_verb = 'downgrade' AND r_mode = 'exclusive' THEN
        UPDATE {claim} SET mode = 'shared' WHERE name = p_name AND state = 'held' AND seq = r_seq;
        SET l_kind = 'rwlock';
      ELSEIF p_verb = 'proclaim' THEN
        UPDATE {claim} SET owner = p_owner WHERE name = p_name AND state = 'held' AND seq = r_seq;
      END IF;
      UPDATE {claim} SET expiry = GREATEST(expiry, now + lease) WHERE name = p_name AND state = 'held' AND seq = r_seq;
      SET o_fence = r_fence;
    ELSEIF p_verb IN ('claim', 'renew', 'downgrade', 'proclaim') AND o_answer = 'waits' THEN
      UPDATE {claim} SET expiry = now + LEAST(lease, {longest_wait}) WHERE name = p_name AND state = 'waits' AND seq = r_seq;
    ELSEIF p_verb = 'claim' THEN
      IF s_until > 0 THEN
        SET o_answer = 'sealed';
      ELSEIF p_once_per > 0 AND now < m_at + LEAST(p_once_per, m_span) THEN
        SET o_answer = 'soon', o_ask_in = m_at + LEAST(p_once_per, m_span) - now;
      ELSE
        SET plain = l_waiting = 0 AND (holders = 0 OR (p_mode = 'shared' AND exclusive = 0)
          OR (p_mode = 'permits' AND taken + p_permits <= l_limit));
        IF NOT plain AND NOT p_queue THEN
          SET o_answer = 'busy', r_seq = {max_fence}, r_mode = p_mode, r_permits = p_permits;
        ELSEIF l_fence >= {max_fence} THEN
          SET o_answer = 'fences';
        ELSE
          -- A mutex is the write side of a rwlock: once a rwlock claim has joined, the name is a rwlock.
          IF l_kind IS NULL OR l_kind <> 'rwlock' THEN SET l_kind = p_kind, l_limit = p_limit; END IF;
          -- A reason of an earlier life under this id must not be told to this one.
          DELETE FROM {claim} WHERE name = p_name AND state = 'gone' AND claim = p_claim;
          SET r_seq = l_tail, r_mode = p_mode, r_permits = p_permits, l_tail = l_tail + 1;
          IF plain THEN
            SET l_fence = GREATEST(l_fence + 1, now), o_answer = 'held', o_fence = l_fence;
            INSERT INTO {claim} (name, state, seq, fence, mode, permits, owner, reason, since, expiry, lease, claim, min_hold,
                once_per, keep_until, before_at, before_span, before_fence)
              VALUES (p_name, 'held', r_seq, l_fence, p_mode, p_permits, p_owner, p_reason, now, now + p_lease, p_lease, p_claim,
                p_min_hold, p_once_per, IF(p_min_hold > 0, now + p_min_hold, 0), IF(p_once_per > 0, m_at, 0),
                IF(p_once_per > 0, m_span, 0), IF(p_once_per > 0, m_fence, 0));
            IF p_once_per > 0 THEN SET m_at = now, m_span = p_once_per, m_fence = l_fence; END IF;
          ELSE
            INSERT INTO {claim} (name, state, seq, mode, permits, owner, reason, since, expiry, lease, claim, min_hold, once_per)
              VALUES (p_name, 'waits', r_seq, p_mode, p_permits, p_owner, p_reason, now, now + LEAST(p_lease, {longest_wait}),
                p_lease, p_claim, p_min_hold, p_once_per);
            SET l_waiting = l_waiting + 1, o_answer = 'waits';
          END IF;
        END IF;
      END IF;
    ELSEIF p_verb IN ('renew', 'downgrade', 'proclaim') THEN
      SELECT why INTO o_answer FROM {claim} WHERE name = p_name AND state = 'gone' AND claim = p_claim LIMIT 1;
      IF o_answer IS NULL AND EXISTS (SELECT 1 FROM {claim}
          WHERE name = p_name AND state IN ('closed', 'held') AND claim <> p_claim) THEN
        SET o_answer = 'taken';
      ELSEIF o_answer IS NULL THEN
        SET o_answer = IF(p_fence <= l_fence, 'ended', 'unknown');
      END IF;
    ELSEIF p_verb IN ('release', 'undo', 'seal') THEN
      IF o_answer = 'waits' THEN
        DELETE FROM {claim} WHERE name = p_name AND state = 'waits' AND seq = r_seq;
        SET l_waiting = l_waiting - 1, o_answer = 'done';
      ELSE
        IF o_answer = 'held' THEN
          UPDATE {claim} SET state = 'closed' WHERE name = p_name AND state = 'held' AND seq = r_seq;
          IF p_verb = 'seal' THEN
            -- Of two seals the longer one counts: neither may be broken by the other.
            IF s_until < now + p_keep THEN SET s_until = now + p_keep, s_span = p_keep, s_by = p_claim; END IF;
            DELETE FROM {claim} WHERE name = p_name AND state = 'waits' AND expiry <= now;
            UPDATE {claim} SET state = 'gone', why = 'sealed' WHERE name = p_name AND state = 'waits';
            SET l_waiting = 0;
          END IF;
        END IF;
        SET o_answer = IF(o_answer = 'held' OR (p_verb = 'seal' AND s_by = p_claim), 'done', 'lost');
        IF p_verb = 'undo' THEN
          -- The closed period and the mark of the claim's latest grant.
          SET r_seq = NULL;
          SELECT seq, fence, before_at, before_span, before_fence INTO r_seq, r_fence, b_at, b_span, b_fence
            FROM {claim} WHERE name = p_name AND state = 'closed' AND claim = p_claim AND (p_fence IS NULL OR fence = p_fence)
            ORDER BY fence DESC LIMIT 1;
          IF r_seq IS NOT NULL THEN
            DELETE FROM {claim} WHERE name = p_name AND state = 'closed' AND seq = r_seq;
            IF m_span > 0 AND m_fence = r_fence THEN
              SET m_at = b_at, m_span = b_span, m_fence = b_fence;
              IF m_at + m_span <= now THEN SET m_at = 0, m_span = 0, m_fence = 0; END IF;
            END IF;
            -- A later holder must not bring the mark back by its own undo.
            UPDATE {claim} SET before_at = b_at, before_span = b_span, before_fence = b_fence
              WHERE name = p_name AND state IN ('closed', 'held') AND before_span > 0 AND before_fence = r_fence;
          END IF;
        END IF;
        DELETE FROM {claim} WHERE name = p_name AND state = 'closed' AND keep_until <= now;
      END IF;
    ELSEIF p_verb = 'revoke' THEN
      SET w_mode = NULL;
      SELECT seq, state INTO r_seq, w_mode FROM {claim}
        WHERE name = p_name AND state IN ('closed', 'held') AND fence = p_fence LIMIT 1;
      IF w_mode = 'held' THEN
        UPDATE {claim} SET state = 'gone', why = 'revoked' WHERE name = p_name AND state = 'held' AND seq = r_seq;
        SET o_answer = 'done';
      ELSEIF w_mode = 'closed' THEN
        -- Its owner is already gone: there is no claim to tell.
        DELETE FROM {claim} WHERE name = p_name AND state = 'closed' AND seq = r_seq;
        SET o_answer = 'done';
      ELSE
        SELECT fence INTO o_fence FROM {claim} WHERE name = p_name AND state IN ('closed', 'held')
          ORDER BY state = 'closed', fence LIMIT 1;
        SET o_answer = IF(o_fence IS NULL, 'free', 'other');
      END IF;
    ELSEIF p_verb = 'clear' THEN
      SET o_answer = IF(m_span > 0 OR s_until > 0 OR EXISTS (SELECT 1 FROM {claim}
        WHERE name = p_name AND state IN ('closed', 'held') AND keep_until > now), 'done', 'none');
      SET m_at = 0, m_span = 0, m_fence = 0, s_until = 0, s_span = 0, s_by = NULL;
      -- An undo must not bring an earlier mark back.
      UPDATE {claim} SET keep_until = 0, before_at = 0, before_span = 0, before_fence = 0
        WHERE name = p_name AND state IN ('closed', 'held');
      DELETE FROM {claim} WHERE name = p_name AND state = 'closed';
    END IF;
  END LOOP event;

  IF o_answer IN ('waits', 'busy') THEN
    CALL {place}(p_name, r_seq, r_mode, r_permits, l_limit, now, NULL, NULL, o_ahead, o_ask_in, o_bell, o_flag);
  END IF;

  -- One plain holder alone goes back into the row of the line, where the short paths find it.
  SELECT COUNT(*), COALESCE(SUM(state = 'held' AND mode = 'exclusive' AND keep_until = 0 AND before_span = 0 AND fence = l_fence), 0)
    INTO holders, plain FROM {claim} WHERE name = p_name AND state IN ('closed', 'gone', 'held');
  IF m_span = 0 AND s_until = 0 AND holders = 1 AND plain = 1 THEN
    UPDATE {line} AS l JOIN {claim} AS c ON c.name = l.name AND c.state = 'held'
      SET l.state = 'held', l.kind = l_kind, l.permits = 0, l.fence = l_fence, l.owner = c.owner, l.reason = c.reason,
        l.since = c.since, l.expiry = c.expiry, l.lease = c.lease, l.claim = c.claim, l.waiting = l_waiting, l.tail = l_tail,
        l.mark_at = 0, l.mark_span = 0, l.mark_fence = 0, l.seal_until = 0, l.seal_span = 0, l.seal_by = NULL
      WHERE l.name = p_name;
    DELETE FROM {claim} WHERE name = p_name AND state = 'held';
  ELSE
    UPDATE {line} SET state = IF(holders = 0 AND l_waiting = 0 AND m_span = 0 AND s_until = 0, 'free', 'other'),
        kind = l_kind, permits = l_limit, fence = l_fence, owner = NULL, reason = NULL, since = 0, expiry = now, lease = 0,
        claim = NULL, waiting = l_waiting, tail = l_tail, mark_at = m_at, mark_span = m_span, mark_fence = m_fence,
        seal_until = s_until, seal_span = s_span, seal_by = s_by
      WHERE name = p_name;
  END IF;
END
