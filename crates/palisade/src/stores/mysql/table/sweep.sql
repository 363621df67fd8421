-- Deletes lines that nothing was in for p_age: some of them, and says how many.
CREATE PROCEDURE {sweep}(IN p_age BIGINT, IN p_most INT)
  SQL SECURITY INVOKER
BEGIN
  DECLARE due BIGINT DEFAULT {now} - p_age;
  DECLARE deleted, ended INT DEFAULT 0;
  DECLARE v_name, found VARBINARY(1024);
  DECLARE names CURSOR FOR SELECT name FROM {line} AS l
    WHERE expiry < due AND mark_at + mark_span < due AND seal_until < due
      AND NOT EXISTS (SELECT 1 FROM {claim} AS c WHERE c.name = l.name AND GREATEST(c.expiry, c.keep_until) >= due)
    LIMIT p_most;
  DECLARE CONTINUE HANDLER FOR NOT FOUND SET ended = 1;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  OPEN names;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION;
  sweeping: LOOP
    FETCH names INTO v_name;
    IF ended THEN LEAVE sweeping; END IF;
    SET found = NULL;
    -- A line that is locked is in use. What has changed since the cursor read it is left alone.
    SELECT name INTO found FROM {line} WHERE name = v_name AND expiry < due AND mark_at + mark_span < due AND seal_until < due
      FOR UPDATE SKIP LOCKED;
    SET ended = 0;
    IF found IS NOT NULL AND NOT EXISTS (SELECT 1 FROM {claim} WHERE name = v_name AND GREATEST(expiry, keep_until) >= due) THEN
      DELETE FROM {claim} WHERE name = v_name;
      DELETE FROM {line} WHERE name = v_name;
      SET deleted = deleted + 1;
    END IF;
  END LOOP sweeping;
  COMMIT;
  CLOSE names;
  SELECT deleted;
END
