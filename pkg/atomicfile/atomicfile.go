package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// TempSuffix follows the name of a file while its new content is written.
const TempSuffix = ".tmp"

// Write replaces a file, which then has these permissions less the umask's.
// After an error the file is as it was.
func Write(path string, data []byte, perm fs.FileMode) error { return write(path, data, perm, false) }

// WriteSync is Write that returns when the content is on the disk, under its name.
func WriteSync(path string, data []byte, perm fs.FileMode) error {
	if err := write(path, data, perm, true); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

func write(path string, data []byte, perm fs.FileMode, sync bool) error {
	temp := path + TempSuffix
	// What a killed writer left may have other permissions.
	if err := os.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, perm)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil && sync {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(temp))
	}
	return nil
}
