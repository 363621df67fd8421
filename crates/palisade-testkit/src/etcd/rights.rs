/// The page that says which rights a lock needs: what it says is what is tested.
const PAGE: &str = include_str!("../../../../docs/stores/etcd.md");

/// The rights that the documentation gives to the user `locker:lockpw`, for keys below `lock/`: the words of `etcdctl`, line by line.
///
/// The page has them in the block after `<!-- rights -->`, up to the first line that is about something else.
///
/// # Panics
///
/// When the page has none.
#[must_use]
pub fn documented_rights() -> Vec<String> {
    let (_, block) = PAGE.split_once("<!-- rights -->\n```sh\n").expect("docs/stores/etcd.md: no block of rights");
    let words = block.lines().map_while(|line| line.strip_prefix("etcdctl "));
    let rights: Vec<String> =
        words.take_while(|words| words.starts_with("role ") || words.starts_with("user ")).map(str::to_owned).collect();
    assert!(rights.iter().any(|words| words.contains("grant-permission")), "docs/stores/etcd.md: no rights");
    rights
}
