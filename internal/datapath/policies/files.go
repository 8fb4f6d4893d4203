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

// documents are all files of a datapath.
type documents struct {
	now, before state // before is what rows follow, and may be the same
	texts       map[service.Owner][]byte
	pending     bool // rows may be behind, or a killed process has left the previous policies
}

// state is what policies are compiled from.
type state struct {
	sets    map[service.Owner]Set
	pods    map[uint32]policy.Pod // by endpoint
	joining map[netip.Addr]uint32 // endpoints that have no row yet, by address
}

// owners returns the owners in the order in which their policies are assembled.
func (s state) owners() []service.Owner { return slices.Sorted(maps.Keys(s.sets)) }

// trusted returns the owners of whom the first is right where they say different things of an address: the agent is
// before the command line.
func (s state) trusted() []service.Owner {
	owners := s.owners()
	slices.Reverse(owners)
	return owners
}

// enforcedBy returns an owner whose policies are enforced, other than one of them; 0: there is none.
func (s state) enforcedBy(but service.Owner) service.Owner {
	for _, owner := range s.owners() {
		if set := s.sets[owner]; owner != but && len(set.Policies) > 0 && !set.Audit {
			return owner
		}
	}
	return 0
}

// inForce returns the policies that hold. A verdict is that of all of them together, so those that their owner only
// audits are left out while those of another are enforced: they never drop a packet.
func (s state) inForce() (all []policy.Policy) {
	enforced := s.enforcedBy(0) != 0
	for _, owner := range s.owners() {
		if set := s.sets[owner]; !enforced || !set.Audit {
			all = append(all, set.Policies...)
		}
	}
	return all
}

// audit reports whether policies are only audited.
func (s state) audit() bool { return s.enforcedBy(0) == 0 && len(s.inForce()) > 0 }

// LostError tells that the rows in force are of other policies than the files have: somebody has deleted or edited
// these.
type LostError struct{ Dir string }

func (e *LostError) Error() string {
	return fmt.Sprintf("%s: the policies in force are others than these files have: run `mustang reset`", e.Dir)
}

// read reads all files. It needs no lock.
func (p Policies) read() (documents, error) {
	dir, err := p.Objects.FilesDir()
	for try := 0; err == nil; try++ {
		var docs documents
		docs, err = p.readDir(dir)
		if !errors.As(err, new(*LostError)) || try == 10 { // or it changes right now
			return docs, err
		}
		time.Sleep(10 * time.Millisecond)
		err = nil
	}
	return documents{}, err
}

func (p Policies) readDir(dir string) (documents, error) {
	now := state{sets: map[service.Owner]Set{}, pods: map[uint32]policy.Pod{}}
	docs := documents{now: now, texts: map[service.Owner][]byte{}}
	follows, _, err := p.tables().follows.Get(followsRow)
	if err != nil {
		return docs, err
	}
	if err := docs.now.readPods(dir); err != nil {
		return docs, err
	}
	before, left := map[service.Owner][]byte{}, false
	for owner := service.CNI; owner <= service.Lab; owner++ {
		name := filepath.Join(dir, owner.String())
		was, had, err := readFile(name + beforeSuffix) // first: it goes once rows follow the other
		if err != nil {
			return docs, err
		}
		now, has, err := readFile(name + setSuffix)
		if err != nil {
			return docs, err
		}
		if has {
			docs.texts[owner], before[owner] = now, now
		}
		if had {
			before[owner], left = was, true
		}
	}
	docs.pending = digest(docs.texts) != follows.Digest
	if docs.pending && digest(before) != follows.Digest {
		return docs, &LostError{dir}
	}
	if err := docs.now.decode(docs.texts); err != nil {
		return docs, fmt.Errorf("%s: %w", dir, err)
	}
	docs.before = docs.now
	if docs.pending {
		docs.before.sets = map[service.Owner]Set{}
		if err := docs.before.decode(before); err != nil {
			return docs, fmt.Errorf("%s: %w", dir, err)
		}
	}
	docs.pending = docs.pending || left || follows.Changing != 0
	return docs, nil
}

func (s *state) decode(texts map[service.Owner][]byte) error {
	for owner, text := range texts {
		var set Set
		if len(text) > 0 {
			if err := json.Unmarshal(text, &set); err != nil {
				return fmt.Errorf("policies of owner %s: %w", owner, err)
			}
		}
		s.sets[owner] = set
	}
	return nil
}

// readPods reads the files of the pods of endpoints.
func (s *state) readPods(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	for _, entry := range entries {
		id, ok := endpointOf(entry.Name())
		if !ok {
			continue
		}
		text, there, err := readFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			return err
		}
		var pod policy.Pod
		if !there { // it has just gone
			continue
		}
		if err := json.Unmarshal(text, &pod); err != nil {
			return fmt.Errorf("%s: %w", filepath.Join(dir, entry.Name()), err)
		}
		s.pods[id] = pod
	}
	return nil
}

// endpointOf returns the endpoint that a file is of.
func endpointOf(name string) (uint32, bool) {
	number, ok := strings.CutPrefix(strings.TrimSuffix(name, setSuffix), podPrefix)
	id, err := strconv.ParseUint(number, 10, 32)
	return uint32(id), ok && err == nil
}

// readFile reads a file, and none that is not regular: a pipe would hold up every command.
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

// digest identifies what owners say; zero: nothing.
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

// encode returns a set as its file has it. One that says nothing is empty.
func encode(s Set) ([]byte, error) {
	if len(s.Policies)+len(s.Pods)+len(s.Nodes)+len(s.Namespaces) == 0 {
		return nil, nil
	}
	return json.Marshal(s, json.Deterministic(true))
}

// putSet replaces the file of an owner. That of before stays until rows follow the new one.
func (p Policies) putSet(owner service.Owner, text []byte) error {
	dir, err := p.Objects.FilesDir()
	if err != nil {
		return err
	}
	name := filepath.Join(dir, owner.String())
	// If it is there, a killed process has left it, whose rows are not complete.
	if _, err := os.Lstat(name + beforeSuffix); errors.Is(err, os.ErrNotExist) {
		err := os.Link(name+setSuffix, name+beforeSuffix)
		if errors.Is(err, os.ErrNotExist) {
			err = writeFile(name+beforeSuffix, nil)
		}
		if err != nil {
			return err
		}
	}
	return writeFile(name+setSuffix, text)
}

// putPod replaces the file of an endpoint's pod.
func (p Policies) putPod(id uint32, pod policy.Pod) error {
	text, err := json.Marshal(pod, json.Deterministic(true))
	if err != nil {
		return err
	}
	dir, err := p.Objects.MakeFilesDir()
	if err != nil {
		return err
	}
	return writeFile(podFile(dir, id), text)
}

func podFile(dir string, id uint32) string {
	return filepath.Join(dir, fmt.Sprint(podPrefix, id, setSuffix))
}

// writeFile replaces a file: what is read is the old text or the new one, whole.
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

// mark says that rows may be behind the files.
func (p Policies) mark(docs documents) error {
	dir, err := p.Objects.MakeFilesDir()
	if err != nil {
		return err
	}
	if !docs.pending {
		if err := removeBefore(dir); err != nil {
			return err
		}
	}
	follows, _, err := p.tables().follows.Get(followsRow)
	if err != nil {
		return err
	}
	follows.Changing = 1
	return p.tables().follows.Put(followsRow, follows)
}

// finish records that rows follow the files. It deletes previous policies, files of deleted endpoints, and files that a
// killed process wrote in part.
func (p Policies) finish() error {
	// A process that died may have switched rows and told no program: connections are judged by those of before.
	if err := p.Objects.NodeState.Invalidate(); err != nil {
		return err
	}
	dir, err := p.Objects.FilesDir()
	if err != nil {
		return err
	}
	texts := map[service.Owner][]byte{}
	for owner := service.CNI; owner <= service.Lab; owner++ {
		if texts[owner], _, err = readFile(filepath.Join(dir, owner.String()+setSuffix)); err != nil {
			return err
		}
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
		id, ok := endpointOf(entry.Name())
		if ok && !endpoints[id] || strings.HasSuffix(entry.Name(), newSuffix) {
			err = errors.Join(err, os.Remove(filepath.Join(dir, entry.Name())))
		}
	}
	if err != nil {
		return err
	}
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
