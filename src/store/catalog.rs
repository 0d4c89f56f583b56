//! Which images the store has, by name.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use super::lock::{self, Sharing};
use super::{StoreError, open_lock, publish};
use crate::image::descriptor::{Descriptor, media_type};
use crate::image::document::{self, DocumentError, DocumentLimits, Kind};
use crate::image::encoding::TypeNames;
use crate::image::index::{Index, parse_index};
use crate::image::json;
use crate::image::reference::Reference;

/// The annotation that names an image in a layout.
pub(super) const REF_NAME: &str = "org.opencontainers.image.ref.name";

/// The catalog of a store: its `index.json`. An image has its complete name as annotation.
#[derive(Debug)]
pub struct Catalog<'a> {
    root: &'a Path,
}

impl<'a> Catalog<'a> {
    pub(super) fn new(root: &'a Path) -> Self {
        Self { root }
    }

    /// All names, in order, with the manifest or index that each stands for.
    ///
    /// # Errors
    /// [`StoreError::Catalog`] when the catalog is damaged.
    pub fn list(&self) -> Result<BTreeMap<Reference, Descriptor>, StoreError> {
        let index = self.read()?;
        let named = index.manifests.into_iter().filter_map(|entry| Some((name_of(&entry)?, entry)));
        Ok(named.collect())
    }

    /// What `name`, exactly as it was set, stands for.
    ///
    /// # Errors
    /// [`StoreError::Catalog`] when the catalog is damaged.
    pub fn get(&self, name: &Reference) -> Result<Option<Descriptor>, StoreError> {
        Ok(self.list()?.remove(name))
    }

    /// Gives an image a name, which it takes from whatever had it.
    ///
    /// # Errors
    /// When the catalog cannot be read or written.
    pub fn set(&self, name: &Reference, image: &Descriptor) -> Result<(), StoreError> {
        let annotations = Some(BTreeMap::from([(REF_NAME.to_owned(), name.to_string())]));
        let entry = Descriptor { annotations, ..image.clone() };
        self.update(|images| {
            images.retain(|entry| name_of(entry).as_ref() != Some(name));
            images.push(entry);
            images.sort_by_key(name_of);
        })
    }

    /// Takes a name away; whether it was there.
    ///
    /// # Errors
    /// When the catalog cannot be read or written.
    pub fn remove(&self, name: &Reference) -> Result<bool, StoreError> {
        let mut found = false;
        self.update(|images| {
            let before = images.len();
            images.retain(|entry| name_of(entry).as_ref() != Some(name));
            found = images.len() < before;
        })?;
        Ok(found)
    }

    /// Makes the catalog where there is none. A damaged one is moved aside; returns where it is then.
    pub(super) fn repair(&self) -> Result<Option<PathBuf>, StoreError> {
        let _lock = self.lock()?;
        match self.read() {
            Ok(_) => return Ok(None),
            Err(StoreError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                self.write(&[])?;
                return Ok(None);
            }
            Err(StoreError::Catalog { .. }) => {}
            Err(other) => return Err(other),
        }
        let aside = self.root.join("index.json.damaged");
        fs::rename(self.path(), &aside).map_err(StoreError::io("move", &aside))?;
        self.write(&[])?;
        Ok(Some(aside))
    }

    fn path(&self) -> PathBuf {
        self.root.join("index.json")
    }

    /// Only one process at a time changes the catalog, so that no change is lost. Readers see the old or the new one.
    fn lock(&self) -> Result<File, StoreError> {
        let path = self.root.join("catalog.lock");
        let file = open_lock(&path)?;
        lock::wait(&file, Sharing::Alone).map_err(StoreError::io("lock", &path))?;
        Ok(file)
    }

    fn update(&self, change: impl FnOnce(&mut Vec<Descriptor>)) -> Result<(), StoreError> {
        let _lock = self.lock()?;
        let mut images = self.read()?.manifests;
        change(&mut images);
        self.write(&images)
    }

    fn read(&self) -> Result<Index, StoreError> {
        let path = self.path();
        let io_error = |source| StoreError::io("read", &path)(source);
        let file = File::open(&path).map_err(io_error)?;
        let size = file.metadata().map_err(io_error)?.len();
        let invalid = |source: DocumentError| StoreError::Catalog { path: path.clone(), source };
        document::check_size(Kind::Index, size, &DocumentLimits::default()).map_err(invalid)?;
        let mut bytes = Vec::new();
        file.take(size).read_to_end(&mut bytes).map_err(io_error)?;
        parse_index(&bytes, Some(media_type::OCI_INDEX), &DocumentLimits::default()).map_err(invalid)
    }

    fn write(&self, images: &[Descriptor]) -> Result<(), StoreError> {
        let index = Index::new(TypeNames::Oci, images.to_vec(), BTreeMap::new());
        let path = self.path();
        let invalid = |source: DocumentError| StoreError::Catalog { path: path.clone(), source };
        let encoded = json::encode(&index).map_err(|error| StoreError::io("write", &path)(error.into()))?;
        // What could not be read again must not be written.
        let limits = DocumentLimits::default();
        document::check_size(Kind::Index, encoded.bytes.len() as u64, &limits).map_err(invalid)?;
        publish(&path, &encoded.bytes)
    }
}

fn name_of(entry: &Descriptor) -> Option<Reference> {
    entry.annotation(REF_NAME)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::super::Store;
    use super::*;
    use crate::image::digest::Digest;

    fn image(name: &str) -> Descriptor {
        Descriptor::new(media_type::OCI_MANIFEST, Digest::of(name.as_bytes()), name.len() as u64)
    }

    fn reference(text: &str) -> Reference {
        text.parse().unwrap()
    }

    #[test]
    fn names_are_given_moved_and_taken_away() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let catalog = store.catalog();
        assert_eq!(catalog.get(&reference("x")).unwrap(), None);
        catalog.set(&reference("x:1"), &image("a")).unwrap();
        catalog.set(&reference("localhost:5000/x"), &image("a")).unwrap();
        catalog.set(&reference("x:1"), &image("b")).unwrap();
        assert_eq!(catalog.list().unwrap().len(), 2);
        assert_eq!(
            catalog.get(&reference("docker.io/library/x:1")).unwrap().unwrap().digest,
            image("b").digest
        );
        assert!(catalog.remove(&reference("x:1")).unwrap());
        assert!(!catalog.remove(&reference("x:1")).unwrap());
        let again = Store::open(dir.path()).unwrap();
        assert_eq!(
            again.catalog().list().unwrap().into_keys().collect::<Vec<_>>(),
            [reference("localhost:5000/x")]
        );
    }

    #[test]
    fn no_update_is_lost() {
        let dir = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for number in 0..16 {
                let root = dir.path();
                scope.spawn(move || {
                    let store = Store::open(root).unwrap();
                    store.catalog().set(&reference(&format!("x:{number}")), &image("a")).unwrap();
                });
            }
        });
        assert_eq!(Store::open(dir.path()).unwrap().catalog().list().unwrap().len(), 16);
    }

    #[test]
    fn a_damaged_catalog_is_moved_aside_with_a_warning() {
        let dir = tempfile::tempdir().unwrap();
        drop(Store::open(dir.path()).unwrap());
        for damage in ["", "{\"schemaVersion\":2,\"manif", "[]"] {
            fs::write(dir.path().join("index.json"), damage).unwrap();
            let store = Store::open(dir.path()).unwrap();
            assert_eq!(store.warnings().len(), 1);
            assert_eq!(fs::read_to_string(dir.path().join("index.json.damaged")).unwrap(), damage);
            store.catalog().set(&reference("x"), &image("a")).unwrap();
        }
        assert!(Store::open(dir.path()).unwrap().warnings().is_empty());
    }
}
