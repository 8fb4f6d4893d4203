// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"golang.org/x/sys/unix"

	"mustang/internal/policy"
	"mustang/internal/service"
)

// Names of files. An owner has one, and until rows follow it the one of before too. The pod of an endpoint has one.
const (
	setSuffix    = ".json"
	beforeSuffix = ".before.json"
	podPrefix    = "endpoint-"
	newSuffix    = ".new" // of a file that is being written
)

// LostError reports that the rows in force belong to other policies than the files: the files were deleted or edited.
type LostError struct{ Dir string }

func (e *LostError) Error() string {
	return fmt.Sprintf("%s: the policies in force are others than these files have: run `mustang reset`", e.Dir)
}

// read reads all files. It needs no lock.
func (p Policies) read() (docs documents, err error) {
	dir, err := p.Objects.FilesDir()
	for try := 0; err == nil; try++ {
		docs, err = p.readDir(dir)
		if !errors.As(err, new(*LostError)) || try == 10 { // or it changes right now
			return docs, err
		}
		time.Sleep(10 * time.Millisecond)
		err = nil
	}
	return docs, err
}

func (p Policies) readDir(dir string) (documents, error) {
	docs := documents{texts: map[service.Owner][]byte{}}
	follows, _, err := p.tables().follows.Get(followsRow)
	if err != nil {
		return docs, err
	}
	if docs.now.pods, err = readPods(dir); err != nil {
		return docs, err
	}
	before, left := map[service.Owner][]byte{}, false
	for owner := service.CNI; owner <= service.Lab; owner++ {
		name := filepath.Join(dir, owner.String())
		was, had, errBefore := readFile(name + beforeSuffix) // first: it goes once rows follow the other
		now, has, err := readFile(name + setSuffix)
		if err := errors.Join(errBefore, err); err != nil {
			return docs, err
		}
		if has {
			docs.texts[owner], before[owner] = now, now
		}
		if had {
			before[owner], left = was, true
		}
	}
	behind := digest(docs.texts) != follows.Digest
	if behind && digest(before) != follows.Digest {
		return docs, &LostError{dir}
	}
	docs.pending = behind || left || follows.Changing != 0
	if docs.now.sets, err = decode(docs.texts); err != nil {
		return docs, fmt.Errorf("%s: %w", dir, err)
	}
	if docs.before = docs.now; behind {
		if docs.before.sets, err = decode(before); err != nil {
			return docs, fmt.Errorf("%s: %w", dir, err)
		}
	}
	return docs, nil
}

// encode returns a set as its file has it. An empty set is an empty file.
func encode(s Set) ([]byte, error) {
	if len(s.Policies)+len(s.Pods)+len(s.Nodes)+len(s.Namespaces) == 0 {
		return nil, nil
	}
	return json.Marshal(s, json.Deterministic(true))
}

func decode(texts map[service.Owner][]byte) (map[service.Owner]Set, error) {
	sets := map[service.Owner]Set{}
	for owner, text := range texts {
		var set Set
		if len(text) > 0 {
			if err := json.Unmarshal(text, &set); err != nil {
				return nil, fmt.Errorf("policies of owner %s: %w", owner, err)
			}
		}
		sets[owner] = set
	}
	return sets, nil
}

func readPods(dir string) (map[uint32]policy.Pod, error) {
	pods := map[uint32]policy.Pod{}
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	for _, entry := range entries {
		id, ok := endpointOf(entry.Name())
		if !ok {
			continue
		}
		text, there, err := readFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			return nil, err
		}
		if !there { // it has just gone
			continue
		}
		var pod policy.Pod
		if err := json.Unmarshal(text, &pod); err != nil {
			return nil, fmt.Errorf("%s: %w", filepath.Join(dir, entry.Name()), err)
		}
		pods[id] = pod
	}
	return pods, nil
}

func endpointOf(name string) (uint32, bool) {
	number, ok := strings.CutPrefix(strings.TrimSuffix(name, setSuffix), podPrefix)
	id, err := strconv.ParseUint(number, 10, 32)
	return uint32(id), ok && err == nil
}

// readFile reads a regular file: a pipe would hold up every command.
func readFile(path string) (text []byte, there bool, err error) {
	if info, err := os.Lstat(path); err == nil && !info.Mode().IsRegular() {
		return nil, false, fmt.Errorf("%s: not a regular file", path)
	}
	text, err = os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, false, nil
	}
	return text, err == nil, err
}

// digest identifies the sets of owners; zero: there are none.
func digest(texts map[service.Owner][]byte) (d [32]byte) {
	h, some := sha256.New(), false
	for _, owner := range slices.Sorted(maps.Keys(texts)) {
		if text := texts[owner]; len(text) > 0 {
			some = true
			_, _ = fmt.Fprintf(h, "%d %d ", owner, len(text))
			_, _ = h.Write(text)
		}
	}
	if some {
		h.Sum(d[:0])
	}
	return d
}

// update is a change of files, and the rows that go with it.
type update struct {
	sets   map[service.Owner][]byte
	pods   map[uint32]policy.Pod // by endpoint
	limits policy.Limits
	// always ends a change that has begun, even if no row differs; dry writes nothing.
	always, dry bool
	// join writes the rows of endpoints that join, with the rule sets of their addresses.
	join func(map[netip.Addr]policy.Sets) error
}

// begin marks the rows as possibly behind the files, and writes the files of an update. The previous file of an owner
// stays until rows follow the new one.
func (p Policies) begin(docs documents, u update) error {
	dir, err := p.Objects.MakeFilesDir()
	if err == nil && !docs.pending {
		err = removeBefore(dir)
	}
	if err != nil {
		return err
	}
	follows, _, err := p.tables().follows.Get(followsRow)
	if err != nil {
		return err
	}
	follows.Changing = 1
	if err := p.tables().follows.Put(followsRow, follows); err != nil {
		return err
	}
	for id, pod := range u.pods {
		text, err := json.Marshal(pod, json.Deterministic(true))
		if err == nil {
			err = writeFile(filepath.Join(dir, fmt.Sprint(podPrefix, id, setSuffix)), text)
		}
		if err != nil {
			return err
		}
	}
	for owner, text := range u.sets {
		name := filepath.Join(dir, owner.String())
		// If it exists, a killed process has left it, and that process's rows are incomplete.
		if _, err := os.Lstat(name + beforeSuffix); errors.Is(err, os.ErrNotExist) {
			err := os.Link(name+setSuffix, name+beforeSuffix)
			if errors.Is(err, os.ErrNotExist) {
				err = writeFile(name+beforeSuffix, nil)
			}
			if err != nil {
				return err
			}
		}
		if err := writeFile(name+setSuffix, text); err != nil {
			return err
		}
	}
	return nil
}

// writeFile replaces a file: a reader gets the old text or the new one, whole.
func writeFile(path string, text []byte) error {
	fresh := path + newSuffix
	file, err := os.OpenFile(fresh, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(text)
	if err := errors.Join(err, file.Sync(), file.Close()); err != nil {
		return errors.Join(err, os.Remove(fresh))
	}
	if err := os.Rename(fresh, path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := dir.Sync(); err != nil && !errors.Is(err, unix.EINVAL) { // some file systems cannot
		return err
	}
	return nil
}

// finish records that rows follow the files. It deletes previous policies, files of deleted endpoints, and files that a
// killed process wrote in part.
func (p Policies) finish(docs documents, u update) error {
	// A killed process may have switched rows without notifying programs, which then use the previous rows.
	if err := p.Objects.NodeState.Invalidate(); err != nil {
		return err
	}
	dir, err := p.Objects.FilesDir()
	if err != nil {
		return err
	}
	endpoints := map[uint32]bool{}
	for row, err := range p.Objects.Endpoints.All() {
		if err != nil {
			return err
		}
		endpoints[row.Value.Id] = true
	}
	entries, err := os.ReadDir(dir)
	for _, entry := range entries {
		if id, ok := endpointOf(entry.Name()); ok && !endpoints[id] || strings.HasSuffix(entry.Name(), newSuffix) {
			err = errors.Join(err, os.Remove(filepath.Join(dir, entry.Name())))
		}
	}
	if err != nil {
		return err
	}
	texts := maps.Clone(docs.texts)
	maps.Copy(texts, u.sets)
	if err := p.tables().follows.Put(followsRow, follows{Digest: digest(texts)}); err != nil {
		return err
	}
	return removeBefore(dir)
}

func removeBefore(dir string) (err error) {
	names, err := filepath.Glob(filepath.Join(dir, "*"+beforeSuffix))
	for _, name := range names {
		err = errors.Join(err, os.Remove(name))
	}
	return err
}
