-- The last fence of each name, and the claim that has or had it. Only Palisade writes it; it outlives
-- the lock by 10 minutes.
CREATE TABLE IF NOT EXISTS {fence} (
  name text PRIMARY KEY,
  fence bigint NOT NULL,
  claim text NOT NULL,
  revoked boolean NOT NULL DEFAULT false,
  -- When a sweep last saw the lock, in microseconds since 1970.
  used bigint NOT NULL DEFAULT 0
);

-- Applies a verb to one lock. The owner of a lock of ours is <claim>.<fence>.<label>, any other value
-- is that of a peer. Spans are microseconds.
CREATE OR REPLACE PROCEDURE {step}(
  p_verb text, p_name text, p_claim text, p_fence bigint, p_label text, p_lease bigint, p_unit bigint, p_zone text,
  p_patience text, INOUT done text, INOUT holder text, INOUT held bigint, INOUT remaining bigint)
LANGUAGE plpgsql AS $step$
DECLARE
  own text := p_claim || '.' || CASE WHEN p_fence > 0 THEN p_fence || '.' ELSE '' END;
  n timestamptz; us bigint; v_fence bigint;
  v_until timestamptz; v_at timestamptz; v_end timestamptz; v_lease timestamptz;
  present boolean; alive boolean; mine boolean; locked boolean := false;
  last {fence};
BEGIN
  -- A verb that waited for a row would fail in the stricter levels.
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    COMMIT;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  END IF;
  PERFORM set_config('lock_timeout', p_patience, true);
  -- A grant that a crash takes back would have two holders.
  IF current_setting('synchronous_commit') = 'off' THEN PERFORM set_config('synchronous_commit', 'on', true); END IF;
  -- For columns without a time zone.
  IF p_zone = 'utc' THEN PERFORM set_config('TimeZone', 'UTC', true); END IF;
  LOOP
    -- A claim that finds the name taken locks nothing and writes nothing.
    IF locked THEN
      SELECT {owner}, {until}, {at} INTO holder, v_until, v_at FROM {table} WHERE {name} = p_name FOR UPDATE;
    ELSE
      SELECT {owner}, {until}, {at} INTO holder, v_until, v_at FROM {table} WHERE {name} = p_name;
    END IF;
    present := FOUND;
    -- Behind the lock: a time from before it would be too early by the wait.
    n := clock_timestamp();
    alive := present AND v_until > n;
    mine := present AND starts_with(holder, own);
    EXIT WHEN p_verb IN ('show', 'sweep') OR (p_verb = 'claim' AND alive AND NOT mine) OR (locked AND (present OR p_verb <> 'claim'));
    IF locked THEN
      -- Seen by no other session before it is ours.
      INSERT INTO {table} ({name}, {owner}, {until}, {at}) VALUES (p_name, '', n, n) ON CONFLICT DO NOTHING;
    END IF;
    locked := true;
  END LOOP;
  us := (extract(epoch FROM n) * 1000000)::bigint;
  -- The column rounds: a lease must not become shorter by that, nor a lock that has ended look held.
  v_end := timestamptz 'epoch' + us / p_unit * p_unit * interval '1 microsecond';
  v_lease := timestamptz 'epoch' + (us + p_lease + p_unit - 1) / p_unit * p_unit * interval '1 microsecond';
  SELECT * INTO last FROM {fence} f WHERE f.name = p_name;

  IF p_verb = 'sweep' THEN
    {clean}
    DELETE FROM {fence} f WHERE greatest(f.fence, f.used) < us - 700000000 AND NOT EXISTS (SELECT FROM {table} t WHERE t.{name} = f.name);
    done := 'done';
  ELSIF p_verb = 'show' OR (p_verb = 'claim' AND alive AND NOT mine) THEN
    done := CASE WHEN alive THEN 'taken' ELSE 'free' END;
  ELSIF p_verb IN ('claim', 'renew') AND alive AND mine THEN
    -- Extends, never shortens.
    UPDATE {table} SET {until} = v_lease WHERE {name} = p_name AND {until} < v_lease;
    done := 'held';
  ELSIF p_verb = 'claim' THEN
    v_fence := greatest(last.fence + 1, us);
    INSERT INTO {fence} AS f (name, fence, claim) VALUES (p_name, v_fence, p_claim)
      ON CONFLICT (name) DO UPDATE SET fence = excluded.fence, claim = excluded.claim, revoked = false;
    holder := p_claim || '.' || v_fence || '.' || p_label;
    UPDATE {table} SET {owner} = holder, {until} = v_lease, {at} = n WHERE {name} = p_name;
    done := 'held';
  ELSIF p_verb = 'renew' THEN
    done := CASE WHEN last.claim = p_claim AND last.revoked THEN 'revoked' WHEN alive THEN 'taken'
      WHEN p_fence > 0 AND p_fence <= last.fence THEN 'ended' ELSE 'unknown' END;
  ELSIF p_verb = 'release' THEN
    done := CASE WHEN alive AND mine THEN 'done' ELSE 'lost' END;
    IF mine THEN {end} END IF;
  ELSIF NOT alive THEN
    done := 'free';
  ELSIF p_fence = coalesce((regexp_match(holder, '^[0-9a-f]{32}[.]([0-9]{1,18})[.]'))[1]::bigint, 0) THEN
    {end}
    UPDATE {fence} f SET revoked = true WHERE f.name = p_name AND f.fence = p_fence;
    done := 'done';
  ELSE
    done := 'other';
  END IF;
  held := CASE WHEN v_at <= n THEN (extract(epoch FROM n - v_at) * 1000000)::bigint ELSE -1 END;
  remaining := CASE WHEN alive THEN (extract(epoch FROM v_until - n) * 1000000)::bigint ELSE -1 END;
END $step$;
