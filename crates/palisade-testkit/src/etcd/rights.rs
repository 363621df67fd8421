/// The page that says which rights a lock needs: what it says is what is tested.
const PAGE: &str = include_str!("../../../../docs/stores/etcd.md");

/// The rights that the documentation gives to the user `locker:lockpw`, for keys below `lock/`: the
/// words of `etcdctl`, line by line.
///
/// The page has them in the block after `<!-- rights -->`, before those of the first user.
///
/// # Panics
///
/// When the page has none.
#[must_use]
pub fn documented_rights() -> Vec<String> {
    let (_, block) = PAGE
        .split_once("<!-- rights -->\n```sh\n")
        .expect("docs/stores/etcd.md: no block of rights");
    let words = block
        .lines()
        .take_while(|line| *line != "```")
        .filter_map(|line| line.strip_prefix("etcdctl "));
    let rights: Vec<String> = words
        .take_while(|words| !words.contains("root"))
        .map(str::to_owned)
        .collect();
    assert!(
        rights
            .iter()
            .any(|words| words.contains("grant-permission")),
        "docs/stores/etcd.md: no rights"
    );
    rights
}
