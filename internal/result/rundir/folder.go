// SPDX-License-Identifier: Apache-2.0

package rundir

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Modes of what is created, less the umask.
const (
	fileMode = 0o644
	dirMode  = 0o755
)

// Owner is the user and the group that files are given to.
type Owner struct{ UID, GID int }

// SudoUser returns the user who called sudo; nil if that is not how this process, which is
// root, was started.
func SudoUser(getenv func(string) string) *Owner {
	uid, err := strconv.ParseUint(getenv("SUDO_UID"), 10, 31)
	if err != nil || os.Geteuid() != 0 {
		return nil
	}
	gid, err := strconv.ParseUint(getenv("SUDO_GID"), 10, 31)
	if err != nil {
		return nil
	}
	return &Owner{UID: int(uid), GID: int(gid)}
}

// folder is an open directory. Its methods take names in it and follow no symbolic link.
type folder struct {
	file *os.File
	path string
}

// makeAll opens a directory, after making it and its parents. It returns the paths of
// those that it made.
func makeAll(path string, owner *Owner) (dir folder, made []string, err error) {
	above, missing := filepath.Clean(path), []string{}
	for {
		file, err := os.Open(above)
		if err == nil {
			dir = folder{file, above}
			break
		}
		if !errors.Is(err, fs.ErrNotExist) || filepath.Dir(above) == above {
			return folder{}, nil, err
		}
		missing = append(missing, filepath.Base(above))
		above = filepath.Dir(above)
	}
	if info, err := dir.file.Stat(); err != nil || !info.IsDir() {
		_ = dir.close()
		return folder{}, nil, fmt.Errorf("%s is not a directory", above)
	}
	for i := len(missing) - 1; i >= 0; i-- {
		next, err := dir.mkdir(missing[i], owner)
		switch {
		case errors.Is(err, fs.ErrExist): // another process made it
			next, err = dir.open(missing[i])
		case err == nil:
			made = append(made, next.path)
		}
		if err := errors.Join(err, dir.close()); err != nil {
			return folder{}, made, err
		}
		dir = next
	}
	return dir, made, nil
}

// close closes the directory if it is open.
func (f folder) close() error {
	if f.file == nil {
		return nil
	}
	return f.file.Close()
}

func (f folder) fd() int { return int(f.file.Fd()) }

// open opens a directory in this one.
func (f folder) open(name string) (folder, error) {
	path := filepath.Join(f.path, name)
	fd, err := unix.Openat(f.fd(), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return folder{}, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return folder{os.NewFile(uintptr(fd), path), path}, nil
}

// mkdir makes a directory in this one.
func (f folder) mkdir(name string, owner *Owner) (folder, error) {
	if err := unix.Mkdirat(f.fd(), name, dirMode); err != nil {
		return folder{}, &fs.PathError{Op: "create", Path: filepath.Join(f.path, name), Err: err}
	}
	dir, err := f.open(name)
	if err == nil && owner != nil {
		err = dir.file.Chown(owner.UID, owner.GID)
	}
	return dir, err
}

// rmdir removes a directory in this one.
func (f folder) rmdir(name string) error { return unix.Unlinkat(f.fd(), name, unix.AT_REMOVEDIR) }

// replace makes data the content of a file. Until it is complete the file has no name, if
// the file system supports that.
func (f folder) replace(name string, data []byte, owner *Owner) (err error) {
	temp := hidden(name)
	fd, err := unix.Openat(f.fd(), ".", unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, fileMode)
	nameless := err == nil
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EISDIR) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) {
		fd, err = unix.Openat(f.fd(), temp, unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_WRONLY|unix.O_CLOEXEC, fileMode)
	}
	if err != nil {
		return err
	}
	file := os.NewFile(uintptr(fd), name)
	defer func() {
		_ = file.Close()
		if err != nil {
			_ = unix.Unlinkat(f.fd(), temp, 0)
			err = reason(err)
		}
	}()
	if owner != nil {
		if err := file.Chown(owner.UID, owner.GID); err != nil {
			return err
		}
	}
	if _, err := file.Write(data); err != nil {
		return err
	}
	if err := file.Sync(); err != nil {
		return err
	}
	if nameless {
		from := fmt.Sprintf("/proc/self/fd/%d", fd)
		if err := unix.Linkat(unix.AT_FDCWD, from, f.fd(), temp, unix.AT_SYMLINK_FOLLOW); err != nil {
			return err
		}
	}
	return unix.Renameat(f.fd(), temp, f.fd(), name)
}

// relink makes name a symbolic link to target.
func (f folder) relink(name, target string, owner *Owner) (err error) {
	temp := hidden(name)
	if err := unix.Symlinkat(target, f.fd(), temp); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = unix.Unlinkat(f.fd(), temp, 0)
		}
	}()
	if owner != nil {
		if err := f.giveLink(temp, *owner); err != nil {
			return err
		}
	}
	return unix.Renameat(f.fd(), temp, f.fd(), name)
}

// giveLink changes the owner of a symbolic link, and of nothing that was put in its place.
func (f folder) giveLink(name string, owner Owner) error {
	fd, err := unix.Openat(f.fd(), name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return err
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFLNK || stat.Nlink != 1 {
		return fmt.Errorf("%s was replaced meanwhile", name)
	}
	return unix.Fchownat(fd, "", owner.UID, owner.GID, unix.AT_EMPTY_PATH)
}

// hidden returns a name for a file that is not complete.
func hidden(name string) string {
	return "." + strings.TrimPrefix(name, ".") + "." + strconv.FormatUint(rand.Uint64(), 36)
}
