import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessLock;
import org.apache.curator.framework.recipes.locks.InterProcessMultiLock;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreMutex;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.apache.curator.framework.recipes.locks.Lease;
import org.apache.curator.retry.ExponentialBackoffRetry;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.ZooDefs;
import org.apache.zookeeper.ZooKeeper;

/** Curator's locks, told line by line what to do: see PROTOCOL.md. */
public final class Driver {
    /** How a lock is taken and given back, whichever of Curator's it is. */
    private interface Taking {
        boolean acquire(Duration wait) throws Exception;

        void release() throws Exception;
    }

    private final String servers;
    private final String recipe;
    private CuratorFramework client;
    private Duration session;
    private Taking held;

    private Driver(String recipe, String servers) {
        this.recipe = recipe;
        this.servers = servers;
    }

    private static CuratorFramework connect(String servers, Duration session) throws Exception {
        CuratorFramework client = CuratorFrameworkFactory.builder()
            .connectString(servers)
            .sessionTimeoutMs((int) session.toMillis())
            .connectionTimeoutMs(15_000)
            .retryPolicy(new ExponentialBackoffRetry(20, 10))
            .build();
        client.start();
        client.blockUntilConnected();
        return client;
    }

    /** The lease of a lock is its session, which is made by the first request and kept while it stays the same. */
    private CuratorFramework client(Duration lease) throws Exception {
        Duration length = lease.isZero() ? Duration.ofSeconds(10) : lease;
        if (client == null || !length.equals(session)) {
            if (client != null) {
                client.close();
            }
            client = connect(servers, length);
            session = length;
        }
        return client;
    }

    private static Taking taking(InterProcessLock lock) {
        return new Taking() {
            @Override
            public boolean acquire(Duration wait) throws Exception {
                return lock.acquire(wait.toMillis(), TimeUnit.MILLISECONDS);
            }

            @Override
            public void release() throws Exception {
                lock.release();
            }
        };
    }

    private static Taking taking(InterProcessSemaphoreV2 semaphore) {
        return new Taking() {
            private Lease lease;

            @Override
            public boolean acquire(Duration wait) throws Exception {
                lease = semaphore.acquire(wait.toMillis(), TimeUnit.MILLISECONDS);
                return lease != null;
            }

            @Override
            public void release() {
                semaphore.returnLease(lease);
            }
        };
    }

    /** No lock: what ZooKeeper's own client needs to make a node and to delete it. */
    private static Taking bare(CuratorFramework client, String path) throws Exception {
        ZooKeeper own = client.getZookeeperClient().getZooKeeper();
        if (own.exists(path, false) == null) {
            // Not a container, which the server deletes when it finds it empty.
            own.create(path, new byte[0], ZooDefs.Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT);
        }
        return new Taking() {
            private String node;

            @Override
            public boolean acquire(Duration wait) throws Exception {
                node = own.create(path + "/node-", new byte[] {1}, ZooDefs.Ids.OPEN_ACL_UNSAFE, CreateMode.EPHEMERAL_SEQUENTIAL);
                return true;
            }

            @Override
            public void release() throws Exception {
                own.delete(node, -1);
            }
        };
    }

    private static Taking lock(CuratorFramework client, String recipe, String name) throws Exception {
        String path = "/" + name;
        switch (recipe) {
            case "bare":
                return bare(client, path);
            case "curator-mutex":
                return taking(new InterProcessMutex(client, path));
            case "curator-semaphore-mutex":
                return taking(new InterProcessSemaphoreMutex(client, path));
            case "curator-read":
                return taking(new InterProcessReadWriteLock(client, path).readLock());
            case "curator-write":
                return taking(new InterProcessReadWriteLock(client, path).writeLock());
            case "curator-semaphore":
                return taking(new InterProcessSemaphoreV2(client, path, 2));
            case "curator-multi":
                return taking(new InterProcessMultiLock(client, List.of(path + "-1", path + "-2")));
            default:
                throw new IllegalArgumentException("unknown recipe " + recipe);
        }
    }

    private String acquire(String name, Duration lease, Duration wait) throws Exception {
        Taking taking = lock(client(lease), recipe, name);
        if (!taking.acquire(wait)) {
            return "busy";
        }
        held = taking;
        return "acquired";
    }

    private String release() throws Exception {
        if (held == null) {
            return "not-held";
        }
        Taking taking = held;
        held = null;
        taking.release();
        // A node that is gone already is not told.
        return "unsaid";
    }

    /** Acquires and releases for so long, one session and one name per task or a session each at one name. */
    private String loop(String name, int tasks, boolean shared, Duration longest) throws Exception {
        List<CuratorFramework> clients = new ArrayList<>();
        ExecutorService pool = Executors.newFixedThreadPool(tasks);
        try {
            List<Callable<Long>> loops = new ArrayList<>();
            for (int task = 0; task < tasks; task++) {
                if (shared || clients.isEmpty()) {
                    clients.add(connect(servers, Duration.ofSeconds(10)));
                }
                CuratorFramework own = clients.get(clients.size() - 1);
                String path = shared || tasks == 1 ? name : name + "-" + task;
                loops.add(() -> {
                    Taking taking = lock(own, recipe, path);
                    long until = System.nanoTime() + longest.toNanos();
                    long count = 0;
                    while (System.nanoTime() < until) {
                        if (taking.acquire(Duration.ofSeconds(60))) {
                            taking.release();
                            count++;
                        }
                    }
                    return count;
                });
            }
            long begun = System.nanoTime();
            long sum = 0;
            for (Future<Long> counted : pool.invokeAll(loops)) {
                sum += counted.get();
            }
            return "looped " + sum + " " + (System.nanoTime() - begun) / 1000;
        } finally {
            pool.shutdownNow();
            for (CuratorFramework own : clients) {
                own.close();
            }
        }
    }

    private static Duration milliseconds(String word) {
        return Duration.ofMillis(Long.parseLong(word));
    }

    private String answer(String line) throws Exception {
        String[] words = line.trim().split("\\s+");
        switch (words[0]) {
            case "acquire":
                return acquire(words[1], milliseconds(words[2]), milliseconds(words[3]));
            case "release":
                return release();
            case "extend":
                // Its session is kept alive without being asked.
                return held == null ? "not-held" : "extended";
            case "cycle":
                return loop(words[1], 1, false, milliseconds(words[2]));
            case "tasks":
                return loop(words[1], Integer.parseInt(words[2]), false, milliseconds(words[3]));
            case "handoff":
                return loop(words[1], Integer.parseInt(words[2]), true, milliseconds(words[3]));
            default:
                throw new IllegalArgumentException("cannot understand " + line);
        }
    }

    public static void main(String[] args) throws Exception {
        String servers = args[1].replaceFirst("^zk://", "").replaceFirst("[?].*$", "");
        Driver driver = new Driver(args[0], servers);
        System.out.println("ready");
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            String said;
            try {
                said = driver.answer(line);
            } catch (Exception error) {
                said = "error " + String.valueOf(error).replace('\n', ' ');
            }
            System.out.println(said);
        }
        // As a crash would: whatever is still held ends with its session.
        Runtime.getRuntime().halt(0);
    }
}
