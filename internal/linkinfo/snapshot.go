// SPDX-License-Identifier: Apache-2.0

package linkinfo

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
)

// Snapshot holds the network namespaces that existed when Take ran: named namespaces and namespaces of processes. It
// keeps them open until Close, and serves one goroutine.
type Snapshot struct {
	entries []*entry
}

// entry is a namespace of a snapshot.
type entry struct {
	NamespaceInfo
	ns *netns.Namespace
	// links are filled in on first use.
	links  []Link
	listed bool
}

// Take finds the network namespaces of the machine and opens them. It omits namespaces that end meanwhile. It needs
// root.
func Take() (_ *Snapshot, err error) {
	c := &Snapshot{}
	defer func() {
		if err != nil {
			_ = c.Close()
		}
	}()
	names, err := netns.List("")
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if err := c.open(filepath.Join(netns.Directory, name), NamespaceInfo{Name: name, NSID: -1}); err != nil {
			return nil, err
		}
	}
	processes, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list network namespaces: %w", err)
	}
	var pids []int
	for _, process := range processes {
		if pid, err := strconv.Atoi(process.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	for _, pid := range pids {
		path := fmt.Sprintf("/proc/%d/ns/net", pid)
		var stat unix.Stat_t
		if unix.Stat(path, &stat) != nil {
			continue
		}
		if known := c.find(stat.Ino); known != nil {
			if known.PID == 0 {
				known.addProcess(pid)
			}
			continue
		}
		p := NamespaceInfo{NSID: -1}
		p.addProcess(pid)
		if err := c.open(path, p); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// open adds the namespace of a path, unless it is in the snapshot or gone. If no more files can be opened it returns
// an error: all namespaces would seem to be gone.
func (c *Snapshot) open(path string, p NamespaceInfo) error {
	ns, err := netns.Open(path)
	if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
		return fmt.Errorf("list network namespaces: %w", err)
	}
	if err != nil {
		return nil
	}
	if p.Inode, err = ns.Inode(); err != nil || c.find(p.Inode) != nil {
		return ns.Close()
	}
	c.entries = append(c.entries, &entry{NamespaceInfo: p, ns: ns})
	return nil
}

func (c *Snapshot) find(inode uint64) *entry {
	for _, p := range c.entries {
		if p.Inode == inode {
			return p
		}
	}
	return nil
}

// Info returns the name, process and container of n.
func (c *Snapshot) Info(n *netns.Namespace) (NamespaceInfo, error) {
	inode, err := n.Inode()
	if err != nil {
		return NamespaceInfo{}, err
	}
	if known := c.find(inode); known != nil {
		return known.NamespaceInfo, nil
	}
	return NamespaceInfo{Inode: inode, NSID: -1}, nil
}

// Namespaces returns all namespaces of the snapshot, which Close closes.
func (c *Snapshot) Namespaces() []*netns.Namespace {
	all := make([]*netns.Namespace, 0, len(c.entries))
	for _, p := range c.entries {
		all = append(all, p.ns)
	}
	return all
}

// Close closes the namespaces.
func (c *Snapshot) Close() error {
	var errs []error
	for _, p := range c.entries {
		errs = append(errs, p.ns.Close())
	}
	c.entries = nil
	return errors.Join(errs...)
}

// NamespaceInfo identifies a network namespace for people.
type NamespaceInfo struct {
	// Name is the namespace's name below netns.Directory, "root" for the namespace of process 1, or empty.
	Name string `json:"name"`
	// PID is the lowest process id in the namespace; 0 if there is none.
	PID int `json:"pid,omitempty"`
	// Command is the name of that process.
	Command string `json:"command,omitempty"`
	// Container is the container id of that process, or empty.
	Container string `json:"container,omitempty"`
	// Inode identifies the namespace among existing ones; 0 if it can't be opened.
	Inode uint64 `json:"inode,omitempty"`
	// NSID is the namespace's netnsid in the namespace that was listed; -1 if it lacks one.
	NSID int `json:"-"`
}

// RootName is the NamespaceInfo.Name of process 1's namespace.
const RootName = "root"

// String returns the best available name.
func (p NamespaceInfo) String() string {
	switch {
	case p.Name != "":
		return p.Name
	case p.Container != "":
		return fmt.Sprintf("container %.12s (pid %d)", p.Container, p.PID)
	case p.PID != 0:
		return fmt.Sprintf("pid %d (%s)", p.PID, p.Command)
	case p.NSID >= 0:
		return fmt.Sprintf("nsid %d", p.NSID)
	}
	return fmt.Sprintf("inode %d", p.Inode)
}

// containerID matches a container id in a cgroup path of Docker, containerd, CRI-O or podman. It is compiled on first
// use, since most processes never need it.
var containerID = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`[0-9a-f]{64}`) })

func (p *NamespaceInfo) addProcess(pid int) {
	p.PID = pid
	dir := filepath.Join("/proc", fmt.Sprint(pid))
	// The process may have exited.
	command, _ := os.ReadFile(filepath.Join(dir, "comm"))
	p.Command = strings.TrimSpace(string(command))
	// Process 1 may be hidden. Kernel threads stay in the initial namespace.
	if p.Name == "" && (pid == 1 || pid == 2 && p.Command == "kthreadd") {
		p.Name = RootName
	}
	cgroups, _ := os.ReadFile(filepath.Join(dir, "cgroup"))
	p.Container = containerID().FindString(string(cgroups))
}

// addChildren finds the devices in other namespaces whose parents are links of n.
func (c *Snapshot) addChildren(n *netns.Namespace, links []Link) error {
	inode, err := n.Inode()
	if err != nil {
		return err
	}
	for _, p := range c.entries {
		if p.Inode == inode {
			continue
		}
		id := sameNamespace // of n there
		for _, child := range p.list() {
			if child.ParentIndex == 0 || child.PeerNSID == sameNamespace {
				continue
			}
			if id == sameNamespace {
				if id = nsidsIn(p.ns, n)[0]; id < 0 {
					break
				}
			}
			if parent := linkAt(links, child.ParentIndex); parent != nil && child.PeerNSID == id {
				parent.Children = append(parent.Children, Peer{
					Name: child.Name, Kind: child.Kind, Mode: child.Mode, Index: child.Index, Namespace: new(p.NamespaceInfo),
				})
			}
		}
	}
	return nil
}

// list returns the links of an entry, or none if the namespace is gone. It reads them once.
func (p *entry) list() []Link {
	if !p.listed {
		p.links, _ = listLinks(p.ns, sameNamespace)
		p.listed = true
	}
	return p.links
}

// join fills in masters, peers and parents of links.
func (c *Snapshot) join(n *netns.Namespace, links []Link) {
	known, unseen := map[int]*entry{}, map[int][]Link{} // unseen are links of namespaces that the snapshot lacks
	for i, id := range nsidsIn(n, c.Namespaces()...) {
		known[id] = c.entries[i]
	}
	delete(known, -1)
	for i := range links {
		l := &links[i]
		l.Master = nameOf(links, l.MasterIndex)
		end := &Peer{Index: l.PeerIndex + l.ParentIndex} // at most one is set
		if end.Index == 0 {
			continue
		}
		in := links
		if id := l.PeerNSID; id != sameNamespace {
			end.Namespace = &NamespaceInfo{NSID: id}
			if p := known[id]; p != nil {
				*end.Namespace, in = p.NamespaceInfo, p.list()
				end.Namespace.NSID = id
			} else {
				if _, ok := unseen[id]; !ok {
					unseen[id], _ = listLinks(n, id) // links that can't be listed get no names
				}
				in = unseen[id]
			}
		}
		if d := linkAt(in, end.Index); d != nil {
			end.Name, end.Kind, end.Mode, end.Master = d.Name, d.Kind, d.Mode, nameOf(in, d.MasterIndex)
		}
		if l.PeerIndex != 0 {
			l.Peer = end
		} else {
			l.Parent = end
		}
	}
}

// nsidsIn returns the netnsids of namespaces in n; -1 if a namespace lacks one.
func nsidsIn(n *netns.Namespace, of ...*netns.Namespace) []int {
	ids := make([]int, len(of))
	handle, err := rtnl.In(n).Handle()
	if err == nil {
		defer handle.Close()
	}
	for i, other := range of {
		ids[i] = -1
		if err != nil {
			continue
		}
		if id, err := handle.GetNetNsIdByFd(other.FD()); err == nil {
			ids[i] = id
		}
	}
	return ids
}
