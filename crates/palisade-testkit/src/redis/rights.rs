/// The pages that say which rights a lock needs: what they say is what is tested.
const PAGES: [&str; 3] = [
    include_str!("../../../../docs/stores/redis.md"),
    include_str!("../../../../docs/stores/redlock.md"),
    include_str!("../../../../docs/stores/redisson.md"),
];

/// The rights that the documentation gives a user for a format, in the words of a `user` line: for
/// [`Setup::acl`](super::Setup::acl).
///
/// A page has them as the words of `ACL SETUSER`, in the block after `<!-- rights: FORMAT -->`.
///
/// # Panics
///
/// When no page has any for this format.
#[must_use]
pub fn documented_rights(format: &str) -> String {
    let marker = format!("<!-- rights: {format} -->");
    let (_, block) = PAGES
        .iter()
        .find_map(|page| page.split_once(&marker))
        .unwrap_or_else(|| panic!("docs/stores: no {marker}"));
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
