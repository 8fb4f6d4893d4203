// SPDX-License-Identifier: Apache-2.0

package install

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"mustang/internal/cni/netconf"
	"mustang/internal/datapath/objects"
	"mustang/internal/lock"
	"mustang/internal/version"
)

// Change describes the change of a file.
type Change struct {
	What string // "plugin" or "conflist"
	Path string // of the file
	Done string // "written", "replaced", "unchanged", "removed", "absent" or "left", with the reason
}

// String returns the change as a line of text.
func (c Change) String() string { return fmt.Sprintf("%s %s %s", c.What, c.Path, c.Done) }

// Values of [Change.Done].
const (
	written, replaced, unchanged = "written", "replaced", "unchanged"
	removed, absent              = "removed", "absent"
	leftForeign                  = "left: it belongs to another project"
	leftOriginal                 = "left: it is the original, not a copy"
)

// file is a file to install: written under another name, then renamed.
type file struct {
	path    string
	mode    fs.FileMode
	content []byte
	foreign func([]byte) error // returns an error if the existing file belongs to another project
	yields  bool               // leave such a file, without an error
}

// fresh returns the path of the new content during the replacement. The lock of the directory protects it.
func (f *file) fresh() string {
	return filepath.Join(filepath.Dir(f.path), "."+filepath.Base(f.path)+".new")
}

// compare returns [Change.Done] of Install. The error is a *ForeignError if the existing file belongs to another
// project. With force it is replaced, unless it is a directory.
func (f *file) compare(force bool) (done string, err error) {
	info, err := os.Lstat(f.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return written, nil
	case err != nil:
		return "", err
	case f.equal() && info.Mode() == f.mode:
		return unchanged, nil
	case f.equal():
		return replaced, nil
	}
	have, err := readFile(f.path)
	if err == nil {
		if why := f.foreign(have); why != nil && f.yields {
			return leftForeign, nil
		} else if why != nil {
			err = &ForeignError{f.path, why}
		}
	}
	if err != nil && (!force || f.yields || info.IsDir()) {
		return "", err
	}
	return replaced, nil
}

// equal reads the file in parts: an agent compares the plugin on each change of nodes.
func (f *file) equal() bool {
	in, size, err := open(f.path)
	if err != nil {
		return false
	}
	defer in.Close()
	part := make([]byte, 64<<10)
	for want := range slices.Chunk(f.content, len(part)) {
		if _, err := io.ReadFull(in, part[:len(want)]); err != nil || !bytes.Equal(part[:len(want)], want) {
			return false
		}
	}
	return size == int64(len(f.content)) && size > 0
}

func change(f *file, done string) Change {
	what := "plugin"
	if filepath.Ext(f.path) == ".conflist" {
		what = "conflist"
	}
	return Change{What: what, Path: f.path, Done: done}
}

const maxFile = 64 << 20 // bytes; the plugin has 14 MiB

// open opens a file and returns its size. It refuses files that are too large or not regular.
func open(path string) (*os.File, int64, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, 0, err
	case !info.Mode().IsRegular():
		return nil, 0, fmt.Errorf("%s: not a regular file", path)
	case info.Size() > maxFile:
		return nil, 0, fmt.Errorf("%s: more than %d MiB", path, maxFile>>20)
	}
	in, err := os.Open(path)
	return in, info.Size(), err
}

func readFile(path string) ([]byte, error) {
	in, size, err := open(path)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	out := make([]byte, size)
	_, err = io.ReadFull(in, out)
	return out, err
}

func (f *file) stage() error {
	if err := f.discard(); err != nil {
		return err
	}
	out, err := os.OpenFile(f.fresh(), os.O_WRONLY|os.O_CREATE|os.O_EXCL, f.mode)
	if err != nil {
		return err
	}
	_, err = out.Write(f.content)
	if err == nil {
		err = out.Chmod(f.mode) // whatever the umask
	}
	if err == nil {
		err = out.Sync()
	}
	return errors.Join(err, out.Close())
}

func (f *file) commit() error {
	if err := os.Rename(f.fresh(), f.path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(f.path))
}

func (f *file) discard() error {
	if _, err := os.Lstat(f.fresh()); err != nil { // removing a missing file fails on a read-only disk
		return nil
	}
	return os.Remove(f.fresh())
}

// ForeignError reports a file of another project, which is not replaced.
type ForeignError struct {
	Path string
	Why  error
}

func (e *ForeignError) Error() string {
	return fmt.Sprintf("%s belongs to another project: %v", e.Path, e.Why)
}

// Unwrap returns the reason.
func (e *ForeignError) Unwrap() error { return e.Why }

func lockDirs(ctx context.Context, dirs ...string) (unlock func(), err error) {
	held := map[string]*lock.Lock{}
	unlock = func() {
		for _, l := range held {
			l.Unlock()
		}
	}
	for _, path := range dirs {
		dir, err := filepath.EvalSymlinks(path)
		if err == nil && held[dir] == nil {
			var l *lock.Lock
			if l, err = lock.Take(ctx, dir, nil); err == nil {
				held[dir] = l
			}
		}
		if err != nil {
			unlock()
			return nil, err
		}
	}
	return unlock, nil
}

// syncDir syncs a directory. Some file systems cannot sync directories.
func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	if err = dir.Sync(); errors.Is(err, unix.EINVAL) {
		err = nil
	}
	return errors.Join(err, dir.Close())
}

const pluginPackage = "mustang/cmd/mustang-cni" // in the Go build information

// FindPlugin returns the path of the plugin that belongs to a program of this project: in the program's directory, or
// in ../lib/cni, where Debian packages install plugins.
func FindPlugin(program string) (string, error) {
	dir := filepath.Dir(program)
	places := []string{filepath.Join(dir, netconf.PluginType), filepath.Join(dir, "..", "lib", "cni", netconf.PluginType)}
	for _, place := range places {
		if info, err := os.Stat(place); err == nil && info.Mode().IsRegular() {
			return place, nil
		}
	}
	return "", fmt.Errorf("plugin: %s and %s do not exist", places[0], places[1])
}

func foreignPlugin(program []byte) error {
	if isClient(program) {
		return nil
	}
	return noPlugin(program)
}

func noPlugin(program []byte) error {
	info, err := buildinfo.Read(bytes.NewReader(program))
	if err == nil && info.Path != pluginPackage {
		return fmt.Errorf("not a build of %s, but of %s", netconf.PluginType, info.Path)
	}
	if err != nil {
		return fmt.Errorf("not a build of %s: %w", netconf.PluginType, err)
	}
	return nil
}

//go:embed client_amd64 client_arm64
var clients embed.FS

// Client returns the CNI plugin for nodes with an agent, nil if there is none for this processor: a small C program
// (cni/client.c), which starts in a fraction of the time of a Go program. It hands the verb to the agent (package
// server), or runs the Go plugin next to it.
func Client() []byte {
	program, _ := clients.ReadFile("client_" + runtime.GOARCH)
	return stamp(program, version.Program(), strconv.Itoa(objects.LayoutVersion))
}

// place marks the 256 bytes of the program for its version and layout.
const (
	place     = "MUSTANG_BUILD"
	placeSize = 256
)

// stamp returns the program with a version and a layout of maps. If they are too long, it returns the program as it is,
// and agents decline its requests.
func stamp(program []byte, version, layout string) []byte {
	out := bytes.Clone(program)
	text := version + "\x00" + layout + "\x00"
	if at := bytes.Index(out, []byte(place)); at >= 0 && len(text) <= placeSize {
		clear(out[at : at+placeSize])
		copy(out[at:], text)
	}
	return out
}

const (
	maxClientSize = 64 << 10                                // bytes
	clientMark    = ", which has to be beside this program" // part of an error, in every version of the client
)

func isClient(file []byte) bool {
	return len(file) < maxClientSize && bytes.HasPrefix(file, []byte("\x7fELF")) &&
		bytes.Contains(file, []byte(clientMark))
}
