-- Applies events to lines, in one transaction: each array has one element for each event. The rules
-- are those of crate::line. The waiters that were granted or turned away are told after the commit: a
-- NOTIFY inside of a durable transaction would hold up the commits of the whole server.
--
-- Answers are appended in the order in which the lines are locked, which is by name, so that two
-- batches never wait for each other. For each event 7 numbers: its place in the arrays, fence, ahead,
-- ask_in, held, left, permits; and 4 words: answer, owner, reason, mode. Spans are microseconds,
-- negative when there is none.
--
-- A waiter is found by its claim: "IS NOT DISTINCT FROM" keeps the planner from an index by the name,
-- which finds all waiters of the name.
--
-- patience is how many milliseconds the call waits for a row that another session has locked. With
-- 'skip' it does not wait, and answers 'locked' for such a row's events.
CREATE OR REPLACE PROCEDURE @step@(
  verbs text[], names text[], claims bytea[], fences bigint[], kinds text[], capacities bigint[], modes text[],
  permit_counts bigint[], owners text[], reasons text[], leases bigint[], queues boolean[], min_holds bigint[],
  once_pers bigint[], texts text[], spans bigint[], own_inbox text, patience text,
  INOUT numbers bigint[], INOUT words text[])
LANGUAGE plpgsql AS $step$
DECLARE
  -- A waiter before the 65th is counted; one further behind is not told its place.
  most_counted CONSTANT integer := 64;
  longest_wait CONSTANT interval := '5 seconds';
  never CONSTANT timestamptz := '-infinity';
  e record;
  l @line@;
  was @line@;
  h @holder@;
  w @waiter@;
  n timestamptz;
  made boolean; in_use boolean;
  -- Of the holders: how many, whether one of them is no reader, the permits that are out.
  held bigint; alone boolean; permits_out bigint; turns timestamptz; latest timestamptz;
  waits boolean; fits boolean; own bigint; way timestamptz; clear timestamptz;
  -- The answer.
  word text; fence bigint; ahead bigint; ask timestamptz; asked interval; soon interval; shown boolean;
  durable boolean := false; changed boolean;
  skips CONSTANT boolean := patience = 'skip';
  told_inboxes text[] := '{}'; told_texts text[] := '{}';
BEGIN
  -- A verb that waited for a row would fail in the stricter levels.
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    COMMIT;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  END IF;
  -- The plans outlive the state of the tables that they were made for: in an empty table, every row is
  -- read as fast as by an index, and not when a thousand claims wait. A bitmap finds the dead rows of a
  -- name again and again, where an index scan has them skipped from then on.
  PERFORM set_config('lock_timeout', CASE WHEN skips THEN '100' ELSE patience END, true),
    set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true);
  numbers := '{}';
  words := '{}';
  <<events>>
  FOR e IN
    SELECT * FROM unnest(verbs, names, claims, fences, kinds, capacities, modes, permit_counts, owners, reasons,
      leases, queues, min_holds, once_pers, texts, spans)
    WITH ORDINALITY AS event(verb, name, claim, fence, kind, capacity, mode, permits, owner, reason,
      lease, queue, min_hold, once_per, text, span, place)
    ORDER BY name COLLATE "C", place
  LOOP
    LOOP
      IF skips THEN
        SELECT * INTO l FROM @line@ x WHERE x.name = e.name FOR UPDATE SKIP LOCKED;
        made := FOUND;
        IF NOT made AND EXISTS (SELECT FROM @line@ x WHERE x.name = e.name) THEN
          numbers := numbers || ARRAY[e.place, 0, -1, -1, -1, -1, 0];
          words := words || ARRAY['locked', NULL, NULL, NULL];
          CONTINUE events;
        END IF;
      ELSE
        SELECT * INTO l FROM @line@ x WHERE x.name = e.name FOR UPDATE;
        made := FOUND;
      END IF;
      EXIT WHEN made OR e.verb <> 'claim';
      INSERT INTO @line@ (name) VALUES (e.name) ON CONFLICT DO NOTHING;
    END LOOP;
    -- Behind the lock: a time from before it would be too early by the wait.
    n := clock_timestamp();
    was := l;
    in_use := false;
    fence := 0; ahead := -1; ask := NULL; asked := NULL; shown := false; changed := false;
    word := CASE e.verb WHEN 'release' THEN 'lost' WHEN 'revoke' THEN 'none' WHEN 'clear' THEN 'none' ELSE 'unknown' END;

    -- The first pass ends what has expired and hands the name on, and applies the event. The second
    -- hands on what the event has freed.
    FOR pass IN 1..2 LOOP
      EXIT WHEN NOT made OR (pass = 2 AND NOT changed);
      SELECT count(*), coalesce(bool_or(x.mode <> 'shared'), false), coalesce(sum(x.permits), 0),
          min(CASE WHEN x.ghost THEN x.keep_until ELSE x.expiry END), max(greatest(x.expiry - x.lease, x.since))
        INTO held, alone, permits_out, turns, latest FROM @holder@ x WHERE x.name = e.name;
      in_use := in_use OR held > 0;
      IF latest > n THEN
        -- The clock went back: no lease is longer than it was asked for, and no minimum hold.
        UPDATE @holder@ x SET expiry = least(x.expiry, n + x.lease), since = least(x.since, n),
            keep_until = CASE WHEN x.keep_until > n THEN least(x.keep_until, n + (x.keep_until - x.since)) ELSE x.keep_until END
          WHERE x.name = e.name;
      END IF;
      IF turns <= n THEN
        DELETE FROM @holder@ x WHERE x.name = e.name AND x.keep_until <= n AND (x.ghost OR x.expiry <= n);
        UPDATE @holder@ x SET ghost = true WHERE x.name = e.name AND NOT x.ghost AND x.expiry <= n;
        durable := true;
        SELECT count(*), coalesce(bool_or(x.mode <> 'shared'), false), coalesce(sum(x.permits), 0)
          INTO held, alone, permits_out FROM @holder@ x WHERE x.name = e.name;
      END IF;
      IF l.mark_at > n THEN l.mark_at := n; END IF;
      IF l.mark_at + l.mark_span <= n THEN
        l.mark_at := NULL; l.mark_span := NULL; l.mark_fence := NULL;
      END IF;
      IF l.seal_until <= n THEN l.seal_until := NULL; l.seal_by := NULL; END IF;
      IF l.buried AND pass = 1 THEN
        DELETE FROM @gone@ x WHERE x.name = e.name AND x.until <= n;
        l.buried := EXISTS (SELECT FROM @gone@ x WHERE x.name = e.name);
      END IF;

      -- Hands the name to the head of the line for as long as it fits.
      LOOP
        SELECT * INTO w FROM @waiter@ x WHERE x.name = e.name ORDER BY x.seq LIMIT 1;
        waits := FOUND;
        EXIT WHEN NOT waits;
        IF w.expiry <= n THEN
          DELETE FROM @waiter@ x WHERE x.name = e.name AND x.seq = w.seq;
          CONTINUE;
        END IF;
        IF w.expiry > n + least(w.lease, longest_wait) THEN
          -- The same for waiters, of which some may be dead.
          UPDATE @waiter@ x SET expiry = least(x.expiry, n + least(x.lease, longest_wait)) WHERE x.name = e.name;
          CONTINUE;
        END IF;
        fits := held = 0 OR (w.mode = 'shared' AND NOT alone) OR (w.mode = 'permits' AND permits_out + w.permits <= l.capacity);
        EXIT WHEN NOT fits OR l.fence = 9223372036854775807;
        DELETE FROM @waiter@ x WHERE x.name = e.name AND x.seq = w.seq;
        durable := true;
        IF w.once_per > interval '0' AND n < l.mark_at + least(w.once_per, l.mark_span) THEN
          INSERT INTO @gone@ AS x VALUES (e.name, w.claim, 'too soon', w.expiry)
            ON CONFLICT ON CONSTRAINT @gone_key@ DO UPDATE SET why = excluded.why, until = excluded.until;
          l.buried := true;
          IF w.claim <> e.claim THEN
            told_inboxes := told_inboxes || w.inbox;
            told_texts := told_texts || ('too soon ' || encode(w.claim, 'hex') || ' 0');
          END IF;
        ELSE
          l.fence := greatest(l.fence + 1, (extract(epoch FROM n) * 1000000)::bigint);
          -- The claim keeps the expiry that it had as a waiter.
          INSERT INTO @holder@ VALUES (e.name, l.fence, w.owner, w.reason, w.mode, w.permits, n, w.expiry, w.lease,
            CASE WHEN w.min_hold > interval '0' THEN n + w.min_hold ELSE never END, false, w.claim,
            CASE WHEN w.once_per > interval '0' THEN l.mark_at END, CASE WHEN w.once_per > interval '0' THEN l.mark_span END,
            CASE WHEN w.once_per > interval '0' THEN l.mark_fence END);
          IF w.once_per > interval '0' THEN
            l.mark_at := n; l.mark_span := w.once_per; l.mark_fence := l.fence;
          END IF;
          held := held + 1; alone := alone OR w.mode <> 'shared'; permits_out := permits_out + w.permits;
          IF w.claim <> e.claim THEN
            told_inboxes := told_inboxes || w.inbox;
            told_texts := told_texts || ('granted ' || encode(w.claim, 'hex') || ' ' || l.fence);
          END IF;
        END IF;
      END LOOP;
      EXIT WHEN pass = 2;

      IF e.verb = 'claim' AND (held > 0 OR waits)
        AND ((l.kind = 'semaphore') <> (e.kind = 'semaphore') OR l.capacity <> e.capacity) THEN
        word := 'kind ' || l.kind; fence := l.capacity;
        EXIT;
      END IF;

      IF e.verb = 'downgrade' THEN
        UPDATE @holder@ x SET mode = 'shared'
          WHERE x.name = e.name AND x.fence = e.fence AND x.claim = e.claim AND NOT x.ghost AND x.mode = 'exclusive';
        IF FOUND THEN l.kind := 'rwlock'; changed := true; END IF;
      ELSIF e.verb = 'proclaim' THEN
        UPDATE @holder@ x SET owner = e.text WHERE x.name = e.name AND x.fence = e.fence AND x.claim = e.claim AND NOT x.ghost;
      END IF;

      -- Where the claim stands. A claim with a fence does not wait.
      IF e.verb IN ('claim', 'renew', 'downgrade', 'proclaim') THEN
        IF held > 0 THEN
          UPDATE @holder@ x SET expiry = greatest(x.expiry, n + x.lease)
            WHERE x.name = e.name AND x.claim = e.claim AND NOT x.ghost AND (e.fence IS NULL OR x.fence = e.fence)
            RETURNING x.fence INTO fence;
          IF FOUND THEN
            word := 'held'; durable := true;
            CONTINUE;
          END IF;
          fence := 0;
        END IF;
        IF waits AND e.fence IS NULL THEN
          UPDATE @waiter@ x SET expiry = greatest(x.expiry, n + least(x.lease, longest_wait)), inbox = own_inbox
            WHERE x.claim = e.claim AND x.name IS NOT DISTINCT FROM e.name AND x.expiry > n
            RETURNING x.* INTO w;
          IF FOUND THEN word := 'waiting'; END IF;
        END IF;
        IF word <> 'waiting' AND e.verb <> 'claim' THEN
          IF l.buried THEN
            SELECT x.why INTO word FROM @gone@ x WHERE x.name = e.name AND x.claim = e.claim;
            CONTINUE WHEN FOUND;
            word := 'unknown';
          END IF;
          IF held > 0 AND EXISTS (SELECT FROM @holder@ x WHERE x.name = e.name AND x.claim <> e.claim) THEN
            word := 'taken';
          ELSIF e.fence <= l.fence THEN
            word := 'ended';
          END IF;
          CONTINUE;
        END IF;
      END IF;

      CASE e.verb
      WHEN 'claim' THEN
        IF word <> 'waiting' THEN
          IF l.seal_until IS NOT NULL THEN
            word := 'sealed';
            CONTINUE;
          END IF;
          soon := CASE WHEN e.once_per > 0 THEN
            l.mark_at + least(e.once_per * interval '1 microsecond', l.mark_span) - n END;
          fits := held = 0 OR (e.mode = 'shared' AND NOT alone) OR (e.mode = 'permits' AND permits_out + e.permits <= l.capacity);
          IF soon > interval '0' THEN
            word := 'too soon'; asked := soon; shown := true;
          ELSIF (NOT fits OR waits) AND NOT e.queue THEN
            word := 'busy'; shown := true;
            IF fits THEN fence := 1; END IF;
          ELSIF l.fence = 9223372036854775807 THEN
            word := 'spent';
          ELSE
            -- A mutex is the write side of a rwlock: once a rwlock claim has joined, the name is one.
            IF (held = 0 AND NOT waits) OR l.kind <> 'rwlock' THEN
              l.kind := e.kind; l.capacity := e.capacity;
            END IF;
            IF l.buried THEN DELETE FROM @gone@ x WHERE x.name = e.name AND x.claim = e.claim; END IF;
            IF fits AND NOT waits THEN
              l.fence := greatest(l.fence + 1, (extract(epoch FROM n) * 1000000)::bigint);
              INSERT INTO @holder@ VALUES (e.name, l.fence, e.owner, e.reason, e.mode, e.permits, n,
                n + e.lease * interval '1 microsecond', e.lease * interval '1 microsecond',
                CASE WHEN e.min_hold > 0 THEN n + e.min_hold * interval '1 microsecond' ELSE never END, false, e.claim,
                CASE WHEN e.once_per > 0 THEN l.mark_at END, CASE WHEN e.once_per > 0 THEN l.mark_span END,
                CASE WHEN e.once_per > 0 THEN l.mark_fence END);
              IF e.once_per > 0 THEN
                l.mark_at := n; l.mark_span := e.once_per * interval '1 microsecond'; l.mark_fence := l.fence;
              END IF;
              word := 'held'; fence := l.fence; durable := true;
              CONTINUE;
            END IF;
            -- An earlier life under this id.
            IF waits THEN DELETE FROM @waiter@ x WHERE x.claim = e.claim AND x.name IS NOT DISTINCT FROM e.name; END IF;
            INSERT INTO @waiter@ AS x (name, owner, reason, mode, permits, since, expiry, lease, min_hold, once_per, claim, inbox)
              VALUES (e.name, e.owner, e.reason, e.mode, e.permits, n,
                n + least(e.lease * interval '1 microsecond', longest_wait), e.lease * interval '1 microsecond',
                e.min_hold * interval '1 microsecond', e.once_per * interval '1 microsecond', e.claim, own_inbox)
              RETURNING x.* INTO w;
            word := 'waiting';
          END IF;
        END IF;
      WHEN 'release' THEN
        SELECT * INTO h FROM @holder@ x
          WHERE x.name = e.name AND x.claim = e.claim AND NOT x.ghost AND (e.fence IS NULL OR x.fence = e.fence);
        IF FOUND THEN
          word := 'done'; changed := true; durable := true;
          IF h.keep_until > n OR e.text = 'undo' THEN
            UPDATE @holder@ x SET ghost = true WHERE x.name = e.name AND x.fence = h.fence;
          ELSE
            DELETE FROM @holder@ x WHERE x.name = e.name AND x.fence = h.fence;
          END IF;
          IF e.text = 'seal' THEN
            -- Of two seals the longer one counts: neither may be broken by the other.
            IF l.seal_until IS NULL OR l.seal_until < n + e.span * interval '1 microsecond' THEN
              l.seal_until := n + e.span * interval '1 microsecond'; l.seal_by := e.claim;
            END IF;
            FOR w IN SELECT * FROM @waiter@ x WHERE x.name = e.name AND x.expiry > n ORDER BY x.seq LOOP
              INSERT INTO @gone@ AS x VALUES (e.name, w.claim, 'sealed', w.expiry)
                ON CONFLICT ON CONSTRAINT @gone_key@ DO UPDATE SET why = excluded.why, until = excluded.until;
              l.buried := true;
              told_inboxes := told_inboxes || w.inbox;
              told_texts := told_texts || ('sealed ' || encode(w.claim, 'hex') || ' 0');
            END LOOP;
            DELETE FROM @waiter@ x WHERE x.name = e.name;
          END IF;
        ELSIF waits AND e.fence IS NULL THEN
          DELETE FROM @waiter@ x WHERE x.claim = e.claim AND x.name IS NOT DISTINCT FROM e.name AND x.expiry > n;
          IF FOUND THEN word := 'done'; changed := true; CONTINUE; END IF;
        END IF;
        IF e.text = 'undo' THEN
          SELECT * INTO h FROM @holder@ x
            WHERE x.name = e.name AND x.claim = e.claim AND x.ghost AND (e.fence IS NULL OR x.fence = e.fence)
            ORDER BY x.fence DESC LIMIT 1;
          IF FOUND THEN
            DELETE FROM @holder@ x WHERE x.name = e.name AND x.fence = h.fence;
            IF l.mark_fence = h.fence THEN
              l.mark_at := h.before_at; l.mark_span := h.before_span; l.mark_fence := h.before_fence;
            END IF;
            -- A later holder must not bring the mark back by its own undo.
            UPDATE @holder@ x SET before_at = h.before_at, before_span = h.before_span, before_fence = h.before_fence
              WHERE x.name = e.name AND x.before_fence = h.fence;
            changed := true; durable := true;
          END IF;
        ELSIF word = 'lost' AND e.text = 'seal' AND l.seal_by = e.claim THEN
          -- The reply to this very seal was lost, and it is sent again.
          word := 'done';
        END IF;
        CONTINUE;
      WHEN 'revoke' THEN
        DELETE FROM @holder@ x WHERE x.name = e.name AND x.fence = e.fence RETURNING x.* INTO h;
        IF FOUND THEN
          word := 'done'; changed := true; durable := true;
          IF NOT h.ghost THEN
            INSERT INTO @gone@ AS x VALUES (e.name, h.claim, 'revoked', h.expiry)
              ON CONFLICT ON CONSTRAINT @gone_key@ DO UPDATE SET why = excluded.why, until = excluded.until;
            l.buried := true;
          END IF;
        ELSE
          SELECT x.fence INTO fence FROM @holder@ x WHERE x.name = e.name ORDER BY x.ghost, x.fence LIMIT 1;
          IF FOUND THEN word := 'other'; ELSE fence := 0; END IF;
        END IF;
        CONTINUE;
      WHEN 'clear' THEN
        IF l.mark_at IS NOT NULL OR l.seal_until IS NOT NULL
          OR EXISTS (SELECT FROM @holder@ x WHERE x.name = e.name AND x.keep_until > n) THEN
          word := 'done'; changed := true; durable := true;
          l.mark_at := NULL; l.mark_span := NULL; l.mark_fence := NULL; l.seal_until := NULL; l.seal_by := NULL;
          DELETE FROM @holder@ x WHERE x.name = e.name AND x.ghost;
        END IF;
        -- An undo must not bring an earlier mark back.
        UPDATE @holder@ x SET keep_until = never, before_at = NULL, before_span = NULL, before_fence = NULL
          WHERE x.name = e.name AND (x.keep_until > never OR x.before_at IS NOT NULL);
        CONTINUE;
      ELSE
        NULL;
      END CASE;

      -- After how long time alone admits the claim: of a waiter, `w` is its row.
      IF word IN ('waiting', 'busy') THEN
        way := n;
        IF word = 'busy' THEN w.mode := e.mode; w.permits := e.permits; w.seq := 9223372036854775807; END IF;
        fits := held = 0 OR (w.mode = 'shared' AND NOT alone) OR (w.mode = 'permits' AND permits_out + w.permits <= l.capacity);
        IF NOT fits AND w.mode = 'permits' THEN
          SELECT min(y.ends) INTO way FROM (
            SELECT o.ends, l.capacity - permits_out + sum(o.permits) OVER (ORDER BY o.ends, o.fence) AS free FROM (
              SELECT CASE WHEN x.ghost THEN x.keep_until ELSE greatest(x.expiry, x.keep_until) END AS ends, x.permits, x.fence
                FROM @holder@ x WHERE x.name = e.name) o) y
            WHERE y.free >= w.permits;
        ELSIF NOT fits THEN
          SELECT max(CASE WHEN x.ghost THEN x.keep_until ELSE greatest(x.expiry, x.keep_until) END) INTO way
            FROM @holder@ x WHERE x.name = e.name;
        END IF;
        SELECT count(*), max(y.expiry) INTO ahead, clear FROM (
          SELECT x.expiry FROM @waiter@ x WHERE x.name = e.name AND x.seq < w.seq AND x.expiry > n
            ORDER BY x.seq LIMIT most_counted + 1) y;
        IF ahead > most_counted THEN
          ahead := -1;
        ELSE
          asked := greatest(way, clear) - n;
        END IF;
      END IF;
    END LOOP;

    -- For the sweeper: the fence says when the grant was made, and it may have been held for long.
    IF in_use AND n > coalesce(l.used_at, never) + interval '1 minute'
      AND (extract(epoch FROM n) * 1000000)::bigint - l.fence > 60000000 THEN
      l.used_at := n;
    END IF;
    IF l IS DISTINCT FROM was THEN
      UPDATE @line@ x SET kind = l.kind, capacity = l.capacity, fence = l.fence, used_at = l.used_at, mark_at = l.mark_at,
          mark_span = l.mark_span, mark_fence = l.mark_fence, seal_until = l.seal_until, seal_by = l.seal_by, buried = l.buried
        WHERE x.name = e.name;
    END IF;
    h := NULL;
    IF shown THEN
      SELECT * INTO h FROM @holder@ x WHERE x.name = e.name AND NOT x.ghost ORDER BY x.fence LIMIT 1;
    END IF;
    numbers := numbers || ARRAY[e.place, CASE WHEN shown THEN coalesce(h.fence, -fence) ELSE fence END, ahead,
      coalesce((extract(epoch FROM asked) * 1000000)::bigint, -1),
      coalesce((extract(epoch FROM n - h.since) * 1000000)::bigint, -1),
      coalesce((extract(epoch FROM h.expiry - n) * 1000000)::bigint, -1), coalesce(h.permits, 0)];
    words := words || ARRAY[word, h.owner, h.reason, h.mode];
  END LOOP;

  IF NOT durable THEN
    -- A lost place in line costs nothing: its claim is told that it is gone, and queues again.
    PERFORM set_config('synchronous_commit', 'off', true);
  ELSIF current_setting('synchronous_commit') = 'off' THEN
    -- Of the role or the server. A grant that a crash takes back would have two holders.
    PERFORM set_config('synchronous_commit', 'on', true);
  END IF;
  IF cardinality(told_texts) > 0 THEN
    COMMIT;
    FOR place IN 1..cardinality(told_texts) LOOP
      PERFORM pg_notify(told_inboxes[place], told_texts[place]);
    END LOOP;
  END IF;
END
$step$;

-- Deletes some of what has been over for ten minutes, so that the last fence outlives the name. Says
-- whether there may be more.
CREATE OR REPLACE PROCEDURE @sweep@(INOUT more boolean)
LANGUAGE plpgsql AS $sweep$
DECLARE
  most CONSTANT integer := 1000;
  -- A minute more: that is how late a time of use may be noted.
  over CONSTANT timestamptz := clock_timestamp() - interval '11 minutes';
  idle text[];
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    COMMIT;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  END IF;
  PERFORM set_config('synchronous_commit', 'off', true);
  -- Names in use are left out here: they must not fill up the selection.
  idle := ARRAY(SELECT x.name FROM @line@ x WHERE x.fence < extract(epoch FROM over) * 1000000
    AND (x.used_at IS NULL OR x.used_at < over) AND (x.mark_at IS NULL OR x.mark_at + x.mark_span < over) AND (x.seal_until IS NULL OR x.seal_until < over)
    AND NOT EXISTS (SELECT FROM @holder@ y WHERE y.name = x.name AND (y.expiry >= over OR y.keep_until >= over))
    AND NOT EXISTS (SELECT FROM @waiter@ y WHERE y.name = x.name AND y.expiry >= over)
    AND NOT EXISTS (SELECT FROM @gone@ y WHERE y.name = x.name AND y.until >= over)
    LIMIT most FOR UPDATE SKIP LOCKED);
  more := cardinality(idle) = most;
  -- A statement of its own: it sees what was written before the rows were locked.
  DELETE FROM @waiter@ x WHERE x.name = ANY (idle) AND x.expiry < over;
  DELETE FROM @holder@ x WHERE x.name = ANY (idle) AND x.expiry < over AND x.keep_until < over;
  DELETE FROM @gone@ x WHERE x.name = ANY (idle) AND x.until < over;
  DELETE FROM @line@ x WHERE x.name = ANY (idle)
    AND (x.used_at IS NULL OR x.used_at < over) AND (x.mark_at IS NULL OR x.mark_at + x.mark_span < over) AND (x.seal_until IS NULL OR x.seal_until < over)
    AND NOT EXISTS (SELECT FROM @holder@ y WHERE y.name = x.name)
    AND NOT EXISTS (SELECT FROM @waiter@ y WHERE y.name = x.name)
    AND NOT EXISTS (SELECT FROM @gone@ y WHERE y.name = x.name);
END
$sweep$;

REVOKE ALL ON PROCEDURE @step@(text[], text[], bytea[], bigint[], text[], bigint[], text[], bigint[], text[], text[],
  bigint[], boolean[], bigint[], bigint[], text[], bigint[], text, text, bigint[], text[]) FROM PUBLIC;
REVOKE ALL ON PROCEDURE @sweep@(boolean) FROM PUBLIC;
