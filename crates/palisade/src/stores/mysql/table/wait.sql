-- Waits for the bell of another claim, and says whether it rang, and by which fence this claim holds.
CREATE PROCEDURE {wait}(IN p_name VARBINARY(1024), IN p_claim VARBINARY(16), IN p_bell VARBINARY(16), IN p_seconds INT)
  SQL SECURITY INVOKER
BEGIN
  DECLARE rang TINYINT;
  DECLARE f BIGINT;
  DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
  SET rang = GET_LOCK({bell}(p_bell), p_seconds);
  IF rang = 1 THEN DO RELEASE_LOCK({bell}(p_bell)); END IF;
  SELECT fence INTO f FROM {line} WHERE name = p_name AND state = 'held' AND claim = p_claim;
  IF f IS NULL THEN
    SELECT fence INTO f FROM {claim} FORCE INDEX (by_claim) WHERE claim = p_claim AND name = p_name AND state = 'held' LIMIT 1;
  END IF;
  SELECT rang, f;
END
