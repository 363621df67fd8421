import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.redisson.api.RedissonClient;

/** Redisson's locks, told line by line what to do: see PROTOCOL.md. One client serves many hands, a thread each. */
public final class Driver {
    /** More than any test has hands that ask at once. */
    private static final int CONNECTIONS = 32;

    /** The hand of lines without a number. */
    private static final String BENCH = "bench";

    /** A thread that takes locks of one kind. */
    private static final class Hand {
        final String kind;
        final Deque<Locks.Taking> held = new ArrayDeque<>();
        final ExecutorService thread = Executors.newSingleThreadExecutor();

        Hand(String kind) {
            this.kind = kind;
        }
    }

    private final String url;
    private final RedissonClient client;
    private final Rounds rounds;
    private final Map<String, Hand> hands = new HashMap<>();

    private Driver(String url) {
        this.url = url;
        this.client = Locks.connect(url, CONNECTIONS);
        this.rounds = new Rounds(url);
    }

    private static synchronized void say(String hand, String said) {
        System.out.println(hand.equals(BENCH) ? said : hand + " " + said);
        System.out.flush();
    }

    private static Duration milliseconds(String word) {
        return Duration.ofMillis(Long.parseLong(word));
    }

    private String acquire(Hand hand, String name, Duration lease, Duration wait) throws Exception {
        Locks.Taking taking = Locks.of(client, hand.kind, name);
        if (!taking.acquire(wait, lease)) {
            return "busy";
        }
        hand.held.push(taking);
        return "acquired";
    }

    private String answer(Hand hand, String[] words) throws Exception {
        switch (words[1]) {
            case "acquire":
                return acquire(hand, words[2], milliseconds(words[3]), milliseconds(words[4]));
            case "release":
                return hand.held.isEmpty() ? "not-held" : hand.held.pop().release();
            case "extend":
                return !hand.held.isEmpty() && hand.held.peek().extend(milliseconds(words[2])) ? "extended" : "not-held";
            case "fence":
                return hand.held.isEmpty() ? "not-held" : "fence " + hand.held.peek().fence();
            case "cycle":
                return rounds.tasks(hand.kind, words[2], 1, milliseconds(words[3]));
            case "tasks":
                return rounds.tasks(hand.kind, words[2], Integer.parseInt(words[3]), milliseconds(words[4]));
            case "handoff":
                return rounds.handoff(hand.kind, words[2], Integer.parseInt(words[3]), milliseconds(words[4]));
            default:
                throw new IllegalArgumentException("cannot understand " + String.join(" ", words));
        }
    }

    /** The hand's own thread answers, so that a hand that waits holds up no other. */
    private void serve(String line) {
        boolean numbered = !line.isEmpty() && Character.isDigit(line.charAt(0));
        String[] words = (numbered ? line : BENCH + " " + line).trim().split("\\s+");
        if (words.length > 2 && words[1].equals("open")) {
            hands.put(words[0], new Hand(words[2]));
            say(words[0], "ready");
            return;
        }
        Hand hand = words.length > 1 ? hands.get(words[0]) : null;
        if (hand == null) {
            say(words[0], "error cannot understand " + line);
        } else if (words[1].equals("close")) {
            hands.remove(words[0]).thread.shutdown();
        } else {
            hand.thread.execute(() -> {
                String said;
                try {
                    said = answer(hand, words);
                } catch (Exception error) {
                    said = "error " + String.valueOf(error).replace('\n', ' ');
                }
                say(words[0], said);
            });
        }
    }

    public static void main(String[] args) throws IOException {
        Driver driver = new Driver(args[1]);
        driver.hands.put(BENCH, new Hand(args[0]));
        System.out.println("ready");
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            driver.serve(line);
        }
        // As a crash would: what is still held ends with its lease.
        Runtime.getRuntime().halt(0);
    }
}
