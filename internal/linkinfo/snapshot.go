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

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
)

// Snapshot holds the network namespaces that existed when Take ran: named namespaces and namespaces of processes. It
// keeps them open until Close, and serves one goroutine.
type Snapshot struct {
	entries []*entry
}

type entry struct {
	NamespaceInfo
	ns    *netns.Namespace
	links func() []Link // read once; none if the namespace is gone
}

// Take finds and opens the machine's network namespaces. It omits namespaces that end meanwhile. It needs root.
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
		if c.find(stat.Ino) == nil {
			if err := c.open(path, NamespaceInfo{NSID: -1}); err != nil {
				return nil, err
			}
		}
		if p := c.find(stat.Ino); p != nil && p.PID == 0 {
			p.addProcess(pid)
		}
	}
	return c, nil
}

// open adds a namespace unless it is known or gone. Without free descriptors all would seem gone: that is an error.
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
	c.entries = append(c.entries, &entry{p, ns, sync.OnceValue(func() []Link {
		links, _ := listLinks(ns, sameNamespace)
		return links
	})})
	return nil
}

func (c *Snapshot) find(inode uint64) *entry {
	if i := slices.IndexFunc(c.entries, func(p *entry) bool { return p.Inode == inode }); i >= 0 {
		return c.entries[i]
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
	return convert(c.entries, func(p *entry) *netns.Namespace { return p.ns })
}

// Close closes the namespaces.
func (c *Snapshot) Close() error {
	errs := convert(c.entries, func(p *entry) error { return p.ns.Close() })
	c.entries = nil
	return errors.Join(errs...)
}

// containerID matches a container id in a cgroup path of Docker, containerd, CRI-O or podman.
var containerID = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`[0-9a-f]{64}`) })

func (p *NamespaceInfo) addProcess(pid int) {
	p.PID = pid
	command, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)) // the process may have exited
	p.Command = strings.TrimSpace(string(command))
	// Process 1 may be hidden. Kernel threads stay in the initial namespace.
	if p.Name == "" && (pid == 1 || pid == 2 && p.Command == "kthreadd") {
		p.Name = RootName
	}
	cgroups, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	p.Container = containerID().FindString(string(cgroups))
}

// Links lists the devices of n, sorted by index, with their relations to devices in other namespaces. It changes
// nothing, except that the kernel assigns netnsids to namespaces of related devices.
func (c *Snapshot) Links(n *netns.Namespace) ([]Link, error) {
	links, err := listLinks(n, sameNamespace)
	if err != nil {
		return nil, err
	}
	handle, err := rtnl.In(n).Handle()
	if err != nil {
		return nil, err
	}
	defer handle.Close()
	addrs, err := rtnl.Dump(func() ([]netlink.Addr, error) { return handle.AddrList(nil, unix.AF_UNSPEC) })
	if err != nil {
		return nil, fmt.Errorf("list addresses in network namespace %q: %w", n.Name(), err)
	}
	for _, addr := range addrs {
		if l := linkAt(links, addr.LinkIndex); l != nil {
			l.Addrs = append(l.Addrs, rtnl.Prefix(addr.IPNet))
		}
	}
	err = n.Do(func() error {
		handle, err := ethtool.NewEthtool()
		if err != nil {
			return err
		}
		defer handle.Close()
		for i := range links {
			links[i].Hardware.read(handle, links[i].Name)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("query ethtool in network namespace %q: %w", n.Name(), err)
	}
	for i := range links {
		links[i].addFilters(handle)
	}
	addNamespaceCalls(n, links)
	c.join(n, handle, links)
	return links, c.addChildren(n, links)
}

func (c *Snapshot) addChildren(n *netns.Namespace, links []Link) error {
	inode, err := n.Inode()
	if err != nil {
		return err
	}
	for _, p := range c.entries {
		id := sync.OnceValue(func() int { // the netnsid of n, as seen from p
			handle, err := rtnl.In(p.ns).Handle()
			if err != nil {
				return sameNamespace
			}
			defer handle.Close()
			return nsid(handle, n)
		})
		for _, child := range p.links() {
			if p.Inode == inode || child.ParentIndex == 0 || child.PeerNSID == sameNamespace || child.PeerNSID != id() {
				continue
			}
			if parent := linkAt(links, child.ParentIndex); parent != nil {
				parent.Children = append(parent.Children, Peer{
					Name: child.Name, Kind: child.Kind, Mode: child.Mode, Index: child.Index, Namespace: new(p.NamespaceInfo),
				})
			}
		}
	}
	return nil
}

func (c *Snapshot) join(n *netns.Namespace, handle *netlink.Handle, links []Link) {
	known, others := map[int]*entry{}, map[int][]Link{sameNamespace: links} // by netnsid
	for _, p := range c.entries {
		known[nsid(handle, p.ns)] = p
	}
	for i := range links {
		l := &links[i]
		l.Master = nameOf(links, l.MasterIndex)
		end, id := &Peer{Index: l.PeerIndex + l.ParentIndex}, l.PeerNSID // a device has a peer or a parent, not both
		if end.Index == 0 {
			continue
		}
		if id != sameNamespace {
			end.Namespace = &NamespaceInfo{}
			if p := known[id]; p != nil {
				*end.Namespace, others[id] = p.NamespaceInfo, p.links()
			} else if _, listed := others[id]; !listed {
				others[id], _ = listLinks(n, id) // links that can't be listed get no names
			}
			end.Namespace.NSID = id
		}
		if d := linkAt(others[id], end.Index); d != nil {
			end.Name, end.Kind, end.Mode, end.Master = d.Name, d.Kind, d.Mode, nameOf(others[id], d.MasterIndex)
		}
		if l.PeerIndex != 0 {
			l.Peer = end
		} else {
			l.Parent = end
		}
	}
}

// nsid returns the netnsid of a namespace in the namespace of a handle; -1 if it lacks one.
func nsid(handle *netlink.Handle, of *netns.Namespace) int {
	if id, err := handle.GetNetNsIdByFd(of.FD()); err == nil {
		return id
	}
	return -1
}
