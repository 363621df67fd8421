-- Turns a holder's claim into something else, ends a grant, or clears marks. A claim that is detached is
-- renewed.
CREATE PROCEDURE {change}(
  IN p_verb VARBINARY(9), IN p_name VARBINARY(1024), IN p_claim VARBINARY(16), IN p_fence BIGINT, IN p_owner MEDIUMBLOB)
  SQL SECURITY INVOKER
BEGIN
  DECLARE f, ahead, ask_in BIGINT;
  DECLARE answer, l_state VARBINARY(9);
  DECLARE bell VARBINARY(16);
  DECLARE flag TINYINT;
  DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION;
  SELECT state INTO l_state FROM {line} WHERE name = p_name FOR UPDATE;
  IF l_state IS NULL THEN
    SET answer = CASE p_verb WHEN 'revoke' THEN 'free' WHEN 'clear' THEN 'none' ELSE 'unknown' END;
  ELSE
    CALL {step}(IF(p_verb = 'detach', 'renew', p_verb), p_name, p_claim, p_fence, NULL, 0, NULL, 0, 0, p_owner, NULL, 0, 0, 0, 0, answer, f, ahead, ask_in, bell, flag);
  END IF;
  COMMIT;
  -- The readers next in line wait for the bell of the writer. Another session may adopt what is detached.
  IF p_verb IN ('downgrade', 'detach') THEN DO RELEASE_LOCK({bell}(p_claim)); END IF;
  SELECT answer, f, ahead, ask_in, bell, flag;
END
