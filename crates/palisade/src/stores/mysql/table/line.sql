-- One row per name. `state` is free, held (one exclusive holder, in this row) or other (all holders
-- are rows of the other table). Times and spans are microseconds, times since 1970 in UTC.
CREATE TABLE IF NOT EXISTS {line} (
  name VARBINARY(1024) NOT NULL PRIMARY KEY,
  state VARBINARY(5) NOT NULL DEFAULT 'free',
  kind VARBINARY(9),
  permits BIGINT NOT NULL DEFAULT 0,
  fence BIGINT NOT NULL DEFAULT 0,
  owner MEDIUMBLOB,
  reason MEDIUMBLOB,
  since BIGINT NOT NULL DEFAULT 0,
  expiry BIGINT NOT NULL DEFAULT 0,
  lease BIGINT NOT NULL DEFAULT 0,
  waiting INT NOT NULL DEFAULT 0,
  claim VARBINARY(16),
  tail BIGINT NOT NULL DEFAULT 0,
  mark_at BIGINT NOT NULL DEFAULT 0,
  mark_span BIGINT NOT NULL DEFAULT 0,
  mark_fence BIGINT NOT NULL DEFAULT 0,
  seal_until BIGINT NOT NULL DEFAULT 0,
  seal_span BIGINT NOT NULL DEFAULT 0,
  seal_by VARBINARY(16)
) ENGINE=InnoDB
