/// The page that says which rights a lock needs: what it says is what is tested.
const PAGE: &str = include_str!("../../../../docs/stores/redis.md");

/// The rights that the documentation gives a user for a format, in the words of a `user` line: for [`Setup::acl`](super::Setup::acl).
///
/// The page has them as the words of `ACL SETUSER`, in the block after `<!-- rights: FORMAT -->`.
///
/// # Panics
///
/// When the page has none for this format.
#[must_use]
pub fn documented_rights(format: &str) -> String {
    let marker = format!("<!-- rights: {format} -->");
    let (_, block) = PAGE
        .split_once(&marker)
        .unwrap_or_else(|| panic!("docs/stores/redis.md: no {marker}"));
    let (_, command) = block
        .split_once(" ACL SETUSER ")
        .unwrap_or_else(|| panic!("no ACL SETUSER after {marker}"));
    let mut words = Vec::new();
    for line in command.lines() {
        words.extend(
            line.trim_end_matches('\\')
                .split_whitespace()
                .map(|word| word.trim_matches('\'')),
        );
        if !line.ends_with('\\') {
            break;
        }
    }
    words.join(" ")
}
