import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.URI;
import java.time.Duration;
import java.time.Instant;
import java.util.Optional;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.LockProvider;
import net.javacrumbs.shedlock.core.SimpleLock;
import net.javacrumbs.shedlock.provider.jdbctemplate.JdbcTemplateLockProvider;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.jdbc.datasource.SingleConnectionDataSource;

/** ShedLock over JDBC, told line by line what to do: see PROTOCOL.md. */
public final class Driver {
    /** ShedLock does not wait: it is asked again so often. */
    private static final Duration RETRY_DELAY = Duration.ofMillis(10);

    private final LockProvider locks;
    private SimpleLock held;

    private Driver(LockProvider locks) {
        this.locks = locks;
    }

    private static LockProvider connect(String url) {
        URI at = URI.create(url);
        String[] login = at.getUserInfo().split(":", 2);
        String driver = at.getScheme().equals("postgres") ? "postgresql" : "mariadb";
        String jdbc = "jdbc:" + driver + "://" + at.getHost() + ":" + at.getPort() + at.getPath();
        String password = login.length > 1 ? login[1] : "";
        SingleConnectionDataSource source = new SingleConnectionDataSource(jdbc, login[0], password, true);
        return new JdbcTemplateLockProvider(JdbcTemplateLockProvider.Configuration.builder()
            .withJdbcTemplate(new JdbcTemplate(source))
            .usingDbTime()
            .build());
    }

    private String acquire(String name, Duration lease, Duration wait) throws Exception {
        long end = System.nanoTime() + wait.toNanos();
        while (true) {
            Optional<SimpleLock> lock = locks.lock(new LockConfiguration(Instant.now(), name, lease, Duration.ZERO));
            if (lock.isPresent()) {
                held = lock.get();
                return "acquired";
            }
            if (System.nanoTime() >= end) {
                return "busy";
            }
            Thread.sleep(RETRY_DELAY.toMillis());
        }
    }

    private String release() {
        if (held == null) {
            return "not-held";
        }
        SimpleLock lock = held;
        held = null;
        lock.unlock();
        // It does not tell whether the lock was still its own.
        return "unsaid";
    }

    private String extend(Duration lease) {
        Optional<SimpleLock> extended = held == null ? Optional.empty() : held.extend(lease, Duration.ZERO);
        held = extended.orElse(null);
        return held == null ? "not-held" : "extended";
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
                return extend(milliseconds(words[1]));
            default:
                throw new IllegalArgumentException("cannot understand " + line);
        }
    }

    public static void main(String[] args) throws Exception {
        if (!args[0].equals("shedlock")) {
            throw new IllegalArgumentException("unknown library " + args[0]);
        }
        Driver driver = new Driver(connect(args[1]));
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
        Runtime.getRuntime().halt(0);
    }
}
