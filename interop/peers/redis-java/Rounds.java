import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.redisson.api.RedissonClient;

/** Acquires and releases for so long, for the bench. */
final class Rounds {
    /** Longer than any wait in a round, so that a lost lock is an error and not a pause. */
    private static final Duration LOST = Duration.ofSeconds(60);

    private final String url;
    private final List<RedissonClient> clients = new ArrayList<>();

    /** Who held the lock of a hand-off last. The lock itself protects these two. */
    private int owner;

    private long changes;

    Rounds(String url) {
        this.url = url;
    }

    /** Connected once: a round is too short to connect in. */
    private RedissonClient client(int number, int connections) {
        while (clients.size() <= number) {
            clients.add(Locks.connect(url, connections));
        }
        return clients.get(number);
    }

    /** One client, and a name for each task. */
    String tasks(String kind, String name, int tasks, Duration length) throws Exception {
        RedissonClient client = client(0, 64);
        return loop(tasks, length, task -> {
            Locks.Taking lock = Locks.of(client, kind, tasks == 1 ? name : name + "-" + task);
            return () -> turn(lock);
        });
    }

    /** As many clients at one name. Counts how often the owner changes: a client that takes the lock twice changes none. */
    String handoff(String kind, String name, int count, Duration length) throws Exception {
        changes = 0;
        client(count, 4);
        String looped = loop(count, length, task -> {
            Locks.Taking lock = Locks.of(client(task + 1, 4), kind, name);
            return () -> {
                take(lock);
                if (owner != task) {
                    owner = task;
                    changes++;
                }
                give_back(lock);
            };
        });
        return looped.replaceFirst(" .* ", " " + changes + " ");
    }

    private static void turn(Locks.Taking lock) throws Exception {
        take(lock);
        give_back(lock);
    }

    private static void take(Locks.Taking lock) throws Exception {
        if (!lock.acquire(LOST, Duration.ZERO)) {
            throw new IllegalStateException("not taken within " + LOST);
        }
    }

    private static void give_back(Locks.Taking lock) {
        String said = lock.release();
        if (said.equals("not-held")) {
            throw new IllegalStateException("lost before it was given back");
        }
    }

    private interface Step {
        void run() throws Exception;
    }

    private interface Task {
        Step begin(int number) throws Exception;
    }

    private static String loop(int tasks, Duration length, Task task) throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(tasks);
        try {
            List<Step> steps = new ArrayList<>();
            for (int number = 0; number < tasks; number++) {
                steps.add(task.begin(number));
            }
            long begun = System.nanoTime();
            List<Callable<Long>> loops = new ArrayList<>();
            for (Step step : steps) {
                loops.add(() -> {
                    long count = 0;
                    for (; System.nanoTime() < begun + length.toNanos(); count++) {
                        step.run();
                    }
                    return count;
                });
            }
            long sum = 0;
            for (Future<Long> counted : pool.invokeAll(loops)) {
                sum += counted.get();
            }
            return "looped " + sum + " " + (System.nanoTime() - begun) / 1000;
        } finally {
            pool.shutdownNow();
        }
    }
}
