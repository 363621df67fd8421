import java.time.Duration;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.api.RCountDownLatch;
import org.redisson.api.RFencedLock;
import org.redisson.api.RLock;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RSemaphore;
import org.redisson.api.RedissonClient;
import org.redisson.config.ClusterServersConfig;
import org.redisson.config.Config;

/** How a lock of Redisson is taken and given back, of any kind. */
final class Locks {
    /** The permits of a semaphore. */
    private static final int PERMITS = 2;

    /** How often a latch is counted down until it opens. */
    private static final int COUNT = 2;

    /** How long a lock without a lease outlives a crash; Redisson renews it every third of this. */
    private static final Duration WATCHDOG = Duration.ofSeconds(6);

    private static final String CLUSTER = "redis+cluster://";

    private Locks() {}

    /** One lock, for one thread: Redisson tells owners apart by client and thread. */
    interface Taking {
        /** A lease of zero is for Redisson to renew. */
        boolean acquire(Duration wait, Duration lease) throws Exception;

        /** A word of the protocol. */
        String release();

        /** Whether the lease begins anew, or is still running where it cannot. */
        boolean extend(Duration lease);

        /** The number of the grant, where there is one. */
        default long fence() {
            throw new UnsupportedOperationException("this lock has no fence");
        }
    }

    /** At one server, or at several of a cluster. */
    static RedissonClient connect(String url, int connections) {
        Config config = new Config();
        config.setThreads(4).setNettyThreads(4).setLockWatchdogTimeout(WATCHDOG.toMillis());
        if (url.startsWith(CLUSTER)) {
            ClusterServersConfig cluster = config.useClusterServers()
                .setMasterConnectionMinimumIdleSize(1)
                .setMasterConnectionPoolSize(connections)
                .setSlaveConnectionMinimumIdleSize(1)
                .setSubscriptionConnectionMinimumIdleSize(1);
            for (String server : url.substring(CLUSTER.length()).split(",")) {
                cluster.addNodeAddress("redis://" + server);
            }
        } else {
            config.useSingleServer()
                .setAddress(url)
                .setConnectionMinimumIdleSize(1)
                .setConnectionPoolSize(connections)
                .setSubscriptionConnectionMinimumIdleSize(1);
        }
        return Redisson.create(config);
    }

    static Taking of(RedissonClient client, String kind, String name) {
        switch (kind) {
            case "lock":
                return taking(client.getLock(name));
            case "fair":
                return taking(client.getFairLock(name));
            case "spin":
                return taking(client.getSpinLock(name));
            case "fenced":
                return taking(client.getFencedLock(name));
            case "read":
                return taking(client.getReadWriteLock(name).readLock());
            case "write":
                return taking(client.getReadWriteLock(name).writeLock());
            case "multi":
                return both(client, List.of(client.getLock(name + "-1"), client.getLock(name + "-2")));
            case "semaphore":
                return taking(client.getSemaphore(name));
            case "permit":
                return taking(client.getPermitExpirableSemaphore(name));
            case "latch":
                return taking(client.getCountDownLatch(name));
            default:
                throw new IllegalArgumentException("unknown kind " + kind);
        }
    }

    /** In Redisson's words, -1 is for its watchdog. */
    private static long millis(Duration lease) {
        return lease.isZero() ? -1 : lease.toMillis();
    }

    private static String unlock(RLock lock) {
        try {
            lock.unlock();
            return "released";
        } catch (IllegalMonitorStateException notHeld) {
            return "not-held";
        }
    }

    private static class Lock implements Taking {
        final RLock lock;

        Lock(RLock lock) {
            this.lock = lock;
        }

        @Override
        public boolean acquire(Duration wait, Duration lease) throws Exception {
            return lock.tryLock(wait.toMillis(), millis(lease), TimeUnit.MILLISECONDS);
        }

        @Override
        public String release() {
            return unlock(lock);
        }

        @Override
        public boolean extend(Duration lease) {
            return lock.isHeldByCurrentThread();
        }
    }

    private static Taking taking(RLock lock) {
        return new Lock(lock);
    }

    private static Taking taking(RFencedLock fenced) {
        return new Lock(fenced) {
            private Long token;

            @Override
            public boolean acquire(Duration wait, Duration lease) {
                token = fenced.tryLockAndGetToken(wait.toMillis(), millis(lease), TimeUnit.MILLISECONDS);
                return token != null;
            }

            @Override
            public long fence() {
                return token;
            }
        };
    }

    /** A multi-lock does not say whether it is held: its parts do. */
    private static Taking both(RedissonClient client, List<RLock> parts) {
        return new Lock(client.getMultiLock(parts.toArray(RLock[]::new))) {
            @Override
            public boolean extend(Duration lease) {
                return parts.stream().allMatch(RLock::isHeldByCurrentThread);
            }
        };
    }

    /** The first client decides how many permits there are. */
    private static Taking taking(RSemaphore semaphore) {
        return new Taking() {
            @Override
            public boolean acquire(Duration wait, Duration lease) throws Exception {
                semaphore.trySetPermits(PERMITS);
                return semaphore.tryAcquire(1, wait);
            }

            /** A number has no owner: nothing is told. */
            @Override
            public String release() {
                semaphore.release();
                return "unsaid";
            }

            @Override
            public boolean extend(Duration lease) {
                return true;
            }
        };
    }

    private static Taking taking(RPermitExpirableSemaphore semaphore) {
        return new Taking() {
            private String permit;

            @Override
            public boolean acquire(Duration wait, Duration lease) throws Exception {
                semaphore.trySetPermits(PERMITS);
                permit = semaphore.tryAcquire(wait.toMillis(), millis(lease), TimeUnit.MILLISECONDS);
                return permit != null;
            }

            @Override
            public String release() {
                return semaphore.tryRelease(permit) ? "released" : "not-held";
            }

            @Override
            public boolean extend(Duration lease) {
                return semaphore.updateLeaseTime(permit, lease.toMillis(), TimeUnit.MILLISECONDS);
            }
        };
    }

    /** It is acquired when it is open. An extension sets it, and a release counts it down. */
    private static Taking taking(RCountDownLatch latch) {
        return new Taking() {
            @Override
            public boolean acquire(Duration wait, Duration lease) throws Exception {
                return latch.await(wait.toMillis(), TimeUnit.MILLISECONDS);
            }

            @Override
            public String release() {
                latch.countDown();
                return "unsaid";
            }

            @Override
            public boolean extend(Duration lease) {
                return latch.trySetCount(COUNT);
            }
        };
    }
}
