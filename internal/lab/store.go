// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/lab/labfile"
	"mustang/internal/netns"
	"mustang/internal/podlink"
	"mustang/internal/qdisc"
	"mustang/internal/service"
	"mustang/internal/suggest"
)

// DefaultDir is the default directory of the records of labs.
const DefaultDir = "/run/mustang"

// Store is the directory with the records of labs. It has mode 0700, its files 0600.
type Store struct {
	Dir     string // the directory. Up creates it.
	Program string // the static mustang that containers run; empty means the running program
	// InPod is for labs in a pod that sees its node's control groups. They make no control groups, which a killed lab
	// would leave. Connections have the machine's congestion control.
	InPod bool
}

// Info is the record of a lab.
type Info struct {
	Options
	Standing bool      `json:"standing"` // true if the lab belongs to no process
	Created  time.Time `json:"created"`  // when Up began to build the lab
}

const (
	stateSuffix = ".json"
	savedSuffix = ".saved"
)

// namespacePrefix starts the names of a lab's namespaces. No lab's name has a dot, so it never starts another's prefix.
func namespacePrefix(lab string) string      { return "mst-" + lab + "." }
func namespaceName(lab, place string) string { return namespacePrefix(lab) + place }
func (s Store) labs() string                 { return filepath.Join(s.Dir, "labs") }
func (s Store) statePath(name string) string { return filepath.Join(s.labs(), name+stateSuffix) }
func (s Store) bpfMount(name string) string  { return filepath.Join(s.labs(), name+".bpf") }
func (s Store) switchDir(name string) string { return filepath.Join(s.labs(), name+".ovs") }
func (s Store) dockerDir(name string) string { return filepath.Join(s.labs(), name+".docker") } // short, for sockets
func (s Store) pluginDir(name string) string { return filepath.Join(s.labs(), name+".cni") }
func (s Store) savedDir(name string) string  { return filepath.Join(s.labs(), name+savedSuffix) }
func (s Store) pinRoot(name string) string   { return filepath.Join(s.bpfMount(name), "mustang") }

// claim records a new lab, owned until the file is closed. If the name is in use, the error is a [*NameError].
func (s Store) claim(o Options) (*os.File, error) {
	for _, dir := range []string{s.Dir, s.labs()} {
		if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
	}
	return s.record(Info{Options: o, Created: time.Now().UTC()}, publish)
}

// change replaces the record of a lab, which this process owns until it closes the returned file.
func (s Store) change(name string, change func(*Info)) (*os.File, error) {
	info, err := readState(s.statePath(name))
	if err != nil {
		return nil, err
	}
	change(&info)
	return s.record(info, replace)
}

// record locks a lab's state before the file gets its name, so that it is never seen unlocked while the owner lives.
// The file has no name before, so that a killed process leaves nothing.
func (s Store) record(info Info, name func(from, to string) error) (_ *os.File, err error) {
	file, err := os.OpenFile(s.labs(), unix.O_TMPFILE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = file.Close()
		}
	}()
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	if err := json.NewEncoder(file).Encode(info); err != nil {
		return nil, err
	}
	err = name(fmt.Sprintf("/proc/self/fd/%d", file.Fd()), s.statePath(info.Name))
	if errors.Is(err, fs.ErrExist) {
		err = &NameError{"lab " + info.Name + " exists already", fs.ErrExist}
	}
	return file, err
}

func publish(from, to string) error {
	return unix.Linkat(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.AT_SYMLINK_FOLLOW)
}

// replace is called by the owner of the lab alone.
func replace(from, to string) error {
	temp := to + ".new"
	_ = os.Remove(temp) // of a killed owner
	if err := publish(from, temp); err != nil {
		return err
	}
	return os.Rename(temp, to)
}

func readState(path string) (info Info, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return info, err
	}
	if err := json.Unmarshal(data, &info); err != nil {
		return info, fmt.Errorf("%s: %w", path, err)
	}
	return info, nil
}

func (s Store) names() ([]string, error) {
	entries, err := os.ReadDir(s.labs())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var names []string
	for _, entry := range entries {
		if name, ok := strings.CutSuffix(entry.Name(), stateSuffix); ok && validName.MatchString(name) {
			names = append(names, name)
		}
	}
	return names, nil
}

// List returns the labs, sorted by name. Call [Store.Reap] first to remove dead ones.
func (s Store) List() ([]Info, error) {
	names, err := s.names()
	infos := []Info{}
	for _, name := range names {
		info, readErr := readState(s.statePath(name))
		switch {
		case readErr == nil:
			infos = append(infos, info)
		case !errors.Is(readErr, fs.ErrNotExist): // ended meanwhile
			err = readErr
		}
	}
	if err != nil {
		return nil, fmt.Errorf("list labs: %w", err)
	}
	return infos, nil
}

// Find returns the lab of a name, or the only one if name is empty. The error matches os.ErrNotExist.
func (s Store) Find(name string) (Info, error) {
	infos, err := s.List()
	if err != nil {
		return Info{}, err
	}
	infos = slices.DeleteFunc(infos, func(info Info) bool {
		return name != "" && info.Name != name || name == "" && !info.Standing // labs of a running bench come and go
	})
	names := convert(infos, func(i Info) string { return i.Name })
	switch {
	case len(infos) == 0 && name == "":
		return Info{}, &NameError{"no lab exists", fs.ErrNotExist}
	case len(infos) == 0:
		return Info{}, missing(name)
	case len(infos) == 1:
		return infos[0], nil
	}
	return Info{}, fmt.Errorf("there are labs %s: name one, as in lab exec --lab %s, lab down %[2]s",
		strings.Join(names, ", "), names[0])
}

// NameError reports that a lab of a name exists (it matches os.ErrExist), or that none does (os.ErrNotExist).
type NameError struct {
	text string
	kind error
}

func (e *NameError) Error() string { return e.text }

// Unwrap returns os.ErrExist or os.ErrNotExist.
func (e *NameError) Unwrap() error { return e.kind }

func missing(name string) error { return &NameError{"lab " + name + " does not exist", fs.ErrNotExist} }

// Enter opens the namespace of a place in a recorded lab. The caller closes it.
func (s Store) Enter(info Info, place string) (*netns.Namespace, error) {
	if places := s.Places(info); !slices.Contains(places, place) {
		return nil, fmt.Errorf("lab %s: no place %q (places: %s)%s", info.Name, place, strings.Join(places, ", "),
			suggest.Text(place, places))
	}
	if place == ContainerHost { // lacks a namespace of its own
		place = HostA
	}
	return netns.Open(filepath.Join(netns.Directory, namespaceName(info.Name, place)))
}

// Places returns the places that can run commands: guests boot for a command of the lab's owner only.
func (s Store) Places(info Info) []string {
	return slices.DeleteFunc(slices.Clone(info.topology().places), func(place string) bool {
		return info.isGuest(place) || info.hostsOnly() && (place == PodA || place == PodB)
	})
}

// SavedServices returns the file in which mustang svc apply in a place of a recorded lab saves services.
func (s Store) SavedServices(info Info, place string) string {
	return filepath.Join(s.savedDir(info.Name), filepath.Base(s.BPFRoot(info, place))+".json")
}

// BPFRoot returns where the eBPF datapath of a place is pinned. Each host has its own.
func (s Store) BPFRoot(info Info, place string) string {
	switch {
	case info.File == nil && info.Topology == TopologyTwoHosts && (place == HostA || place == PodA):
		return filepath.Join(s.bpfMount(info.Name), HostA)
	case info.File == nil:
		return s.pinRoot(info.Name)
	}
	host := info.File.HostOf(place)
	if host == nil {
		return s.bpfMount(info.Name)
	}
	return filepath.Join(s.bpfMount(info.Name), host.Name)
}

const serviceName = "service" // the name of the service of pod-a in [Info.Hosts]

// ServiceNames returns the names by which commands in the lab find its services.
func (i Info) ServiceNames() []string {
	switch {
	case i.File != nil:
		return i.File.ServiceNames()
	case i.Topology == TopologyPodLinks && i.Via != ViaNone, i.Topology == TopologyTwoHosts && i.hasServices():
		return []string{serviceName}
	}
	return nil
}

// Trial returns how to try a service of the lab by hand; ok is false without services.
func (i Info) Trial() (_ labfile.Trial, ok bool) {
	switch {
	case i.File != nil:
		return i.File.Trial()
	case len(i.ServiceNames()) == 0:
		return labfile.Trial{}, false
	}
	return labfile.Trial{Server: labfile.Backend{Pod: PodA, Port: ServicePort}, Client: PodB, Service: serviceName,
		Port: ServicePort}, true
}

// Addresses returns the addresses of a place of the lab, or of one of ServiceNames.
func (i Info) Addresses(place string) []netip.Addr {
	if i.File != nil || !slices.Contains(i.ServiceNames(), place) {
		return Addresses(i.Options, place)
	}
	return convert(Services(), func(s service.Service) netip.Addr { return s.Frontend.Addr() })
}

// Hosts returns lines for a file such as /etc/hosts with the names of places and of services.
func (i Info) Hosts(places []string) string {
	var lines strings.Builder
	for _, name := range append(i.ServiceNames(), places...) {
		for _, address := range i.Addresses(name) {
			fmt.Fprintf(&lines, "%s\t%s\n", address, name)
		}
	}
	return lines.String()
}

// UnsupportedError reports a feature that a lab or its link mode needs and the running kernel lacks.
type UnsupportedError = podlink.UnsupportedError

// limitWire sets a wire's rate and delay on both ends. If the kernel lacks one, the error is an *UnsupportedError.
func limitWire(w labfile.Wire, hosts ...*netns.Namespace) error {
	if w.Rate == 0 && w.Delay == 0 {
		return nil
	}
	queue, since := "tbf", "2.2"
	if w.Delay > 0 {
		queue, since = "netem", "2.6.8"
	}
	for _, host := range hosts {
		err := qdisc.Emulate(host, w.Device, w.Rate, w.Delay)
		if errors.Is(err, errors.ErrUnsupported) {
			err = UnsupportedError{Feature: queue + " queues", Module: "sch_" + queue, Since: since, Err: err}.Here()
		}
		if err != nil {
			return err
		}
	}
	return nil
}
