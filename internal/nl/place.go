// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
)

// Place is a network namespace as people know it.
type Place struct {
	// Name is the namespace's name below Directory, or "root" for that of process
	// 1; empty if it has none.
	Name string
	// PID is the lowest id of a process in the namespace; 0 if there is none.
	PID int
	// Command is that process's name.
	Command string
	// Container is the id of the container that the process is in; or empty.
	Container string
	// Inode identifies the namespace among those that exist; 0 if it can't be
	// opened from here.
	Inode uint64
	// NSID is the namespace's id in the namespace that was looked from; -1 if there
	// is none.
	NSID int
}

// RootName is the Place.Name of process 1's namespace.
const RootName = "root"

// String is the best name that there is.
func (p Place) String() string {
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

// containerID matches the id of a container in the name of its cgroup, as
// Docker, containerd, CRI-O and podman make it. Programs that live for milliseconds
// don't ask.
var containerID = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`[0-9a-f]{64}`) })

// addProcess says which process is in the place.
func (p *Place) addProcess(pid int) {
	p.PID = pid
	dir := filepath.Join("/proc", fmt.Sprint(pid))
	// A process that is gone by now has no name.
	command, _ := os.ReadFile(filepath.Join(dir, "comm"))
	p.Command = strings.TrimSpace(string(command))
	// Process 1 may be hidden from us. Threads of the kernel stay where it began.
	if p.Name == "" && (pid == 1 || pid == 2 && p.Command == "kthreadd") {
		p.Name = RootName
	}
	cgroups, _ := os.ReadFile(filepath.Join(dir, "cgroup"))
	p.Container = containerID().FindString(string(cgroups))
}
