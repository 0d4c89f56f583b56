//! A map whose copies share what they have in common.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::mem;
use std::sync::Arc;

/// A balanced tree (AVL). A copy costs nothing, and a change makes anew only what leads to it, and that only where a copy
/// has it too. Very many stages may stand on one that has very many variables, and each RUN has those of its place: with a
/// copy for each of them, a Dockerfile of a few megabytes took all memory.
#[derive(Debug, Clone)]
pub(super) struct SharedMap<K, V> {
    root: Link<K, V>,
}

type Link<K, V> = Option<Arc<Node<K, V>>>;

#[derive(Debug, Clone)]
struct Node<K, V> {
    key: K,
    value: V,
    /// Of the longest way down, this node included.
    height: u8,
    left: Link<K, V>,
    right: Link<K, V>,
}

impl<K, V> Default for SharedMap<K, V> {
    fn default() -> Self {
        Self { root: None }
    }
}

impl<K: Ord + Clone, V: Clone + Default> SharedMap<K, V> {
    /// The value of `key`.
    pub(super) fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        let mut link = &self.root;
        while let Some(node) = link {
            link = match key.cmp(node.key.borrow()) {
                Ordering::Less => &node.left,
                Ordering::Greater => &node.right,
                Ordering::Equal => return Some(&node.value),
            };
        }
        None
    }

    /// Changes the value of `key`, which is the default if it has none yet.
    pub(super) fn change<R>(&mut self, key: K, change: impl FnOnce(&mut V) -> R) -> R {
        change_below(&mut self.root, key, change)
    }

    /// Keys and values in the order of the keys.
    pub(super) fn iter(&self) -> Iter<'_, K, V> {
        let mut iter = Iter { open: Vec::new() };
        iter.descend(&self.root);
        iter
    }
}

/// Deep as the tree is high: less than one and a half times the binary logarithm of the number of entries.
fn change_below<K: Ord + Clone, V: Clone + Default, R>(
    link: &mut Link<K, V>,
    key: K,
    change: impl FnOnce(&mut V) -> R,
) -> R {
    let Some(node) = link else {
        let mut value = V::default();
        let result = change(&mut value);
        *link = Some(Arc::new(Node { key, value, height: 1, left: None, right: None }));
        return result;
    };
    let node = Arc::make_mut(node);
    let result = match key.cmp(&node.key) {
        Ordering::Less => change_below(&mut node.left, key, change),
        Ordering::Greater => change_below(&mut node.right, key, change),
        Ordering::Equal => return change(&mut node.value),
    };
    node.balance();
    result
}

fn height<K, V>(link: &Link<K, V>) -> u8 {
    link.as_ref().map_or(0, |node| node.height)
}

impl<K: Clone, V: Clone> Node<K, V> {
    /// Puts the node right whose branches differ by two at most.
    fn balance(&mut self) {
        let (left, right) = (height(&self.left), height(&self.right));
        if left > right + 1 {
            if let Some(left) = self.left.as_mut().map(Arc::make_mut)
                && height(&left.left) < height(&left.right)
            {
                left.rotate_left();
            }
            self.rotate_right();
        } else if right > left + 1 {
            if let Some(right) = self.right.as_mut().map(Arc::make_mut)
                && height(&right.right) < height(&right.left)
            {
                right.rotate_right();
            }
            self.rotate_left();
        } else {
            self.measure();
        }
    }

    fn measure(&mut self) {
        self.height = 1 + height(&self.left).max(height(&self.right));
    }

    /// What is on the left comes up.
    fn rotate_right(&mut self) {
        let Some(mut branch) = self.left.take() else { return };
        let lower = Arc::make_mut(&mut branch);
        mem::swap(self, lower);
        lower.left = self.right.take();
        lower.measure();
        self.right = Some(branch);
        self.measure();
    }

    /// What is on the right comes up.
    fn rotate_left(&mut self) {
        let Some(mut branch) = self.right.take() else { return };
        let lower = Arc::make_mut(&mut branch);
        mem::swap(self, lower);
        lower.right = self.left.take();
        lower.measure();
        self.left = Some(branch);
        self.measure();
    }
}

/// The entries of a [`SharedMap`].
pub(super) struct Iter<'m, K, V> {
    /// The nodes that come next, and after them what is on their right; the first one last.
    open: Vec<&'m Node<K, V>>,
}

impl<'m, K, V> Iter<'m, K, V> {
    fn descend(&mut self, mut link: &'m Link<K, V>) {
        while let Some(node) = link {
            self.open.push(node);
            link = &node.left;
        }
    }
}

impl<'m, K, V> Iterator for Iter<'m, K, V> {
    type Item = (&'m K, &'m V);

    fn next(&mut self) -> Option<Self::Item> {
        let node = self.open.pop()?;
        self.descend(&node.right);
        Some((&node.key, &node.value))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Checks order and balance; gives the height.
    fn check(link: &Link<u32, u32>) -> u8 {
        let Some(node) = link else { return 0 };
        let (left, right) = (check(&node.left), check(&node.right));
        assert!(left.abs_diff(right) <= 1, "{left} and {right} below {}", node.key);
        assert_eq!(node.height, 1 + left.max(right));
        node.height
    }

    #[test]
    fn it_holds_what_a_map_of_the_standard_library_holds_and_stays_balanced() {
        for multiplier in [1_u32, 3, 1_103_515_245, u32::MAX] {
            let (mut map, mut expected) = (SharedMap::default(), BTreeMap::new());
            for number in 0..1000_u32 {
                let key = number.wrapping_mul(multiplier) % 700;
                map.change(key, |value| *value += number);
                *expected.entry(key).or_default() += number;
                check(&map.root);
            }
            assert!(map.iter().eq(expected.iter()));
            assert!((0..800).all(|key| map.get(&key) == expected.get(&key)));
        }
    }

    #[test]
    fn a_copy_does_not_change_with_the_original_and_shares_what_did_not_change() {
        let mut map = SharedMap::default();
        for number in 0..1000_u32 {
            map.change(number, |value| *value = number);
        }
        let copy = map.clone();
        for number in (0..3000).step_by(500) {
            map.change(number, |value| *value = 7);
        }
        assert!(copy.iter().all(|(key, value)| key == value) && copy.iter().count() == 1000);
        assert_eq!((map.get(&500), map.get(&2500)), (Some(&7), Some(&7)));
        let own = |link: &Link<u32, u32>| {
            let mut open: Vec<&Arc<Node<u32, u32>>> = link.iter().collect();
            let mut own = 0;
            while let Some(node) = open.pop() {
                if Arc::strong_count(node) == 1 {
                    own += 1;
                    open.extend(node.left.iter().chain(&node.right));
                }
            }
            own
        };
        assert!(own(&map.root) < 60, "{} nodes are the map's alone", own(&map.root));
    }
}
