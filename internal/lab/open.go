// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"mustang/internal/nl"
)

// Find returns the record of the lab of that name, or of the only lab when name
// is empty. The error matches os.ErrNotExist if there is none.
func (s Store) Find(name string) (Info, error) {
	infos, err := s.List()
	if err != nil {
		return Info{}, err
	}
	var names []string
	for _, info := range infos {
		if info.Name == name || (name == "" && len(infos) == 1) {
			return info, nil
		}
		names = append(names, info.Name)
	}
	switch {
	case name != "":
		return Info{}, &NotFoundError{Name: name}
	case len(infos) == 0:
		return Info{}, &NotFoundError{}
	}
	return Info{}, fmt.Errorf("which lab? there are %s", strings.Join(names, ", "))
}

// NotFoundError says that there is no lab of that name, or none at all when the
// name is empty. It matches os.ErrNotExist.
type NotFoundError struct{ Name string }

func (e *NotFoundError) Error() string {
	if e.Name == "" {
		return "no lab stands"
	}
	return "lab " + e.Name + " does not exist"
}

// Is reports whether target is os.ErrNotExist.
func (e *NotFoundError) Is(target error) bool { return target == os.ErrNotExist }

// Enter opens the namespace of a place in a recorded lab. The caller closes it.
func (s Store) Enter(info Info, place string) (*nl.Namespace, error) {
	places := s.Places(info)
	if !slices.Contains(places, place) {
		return nil, fmt.Errorf("lab %s: no %q in it (there are: %s)", info.Name, place, strings.Join(places, ", "))
	}
	if place == ContainerHost { // has no namespace of its own
		place = HostA
	}
	return nl.OpenNamespace(filepath.Join(nl.Directory, namespaceName(info.Name, place)))
}

// Places returns where commands can run in a recorded lab: not in guests, which
// boot for one command of the lab's owner.
func (s Store) Places(info Info) []string {
	for _, topology := range Topologies() {
		if topology.Name == info.Topology {
			return slices.DeleteFunc(slices.Clone(topology.places), func(place string) bool {
				return info.guest(place) || info.hostsOnly() && (place == PodA || place == PodB)
			})
		}
	}
	return nil
}

// BPFRoot is where a recorded lab's eBPF datapath is pinned.
func (s Store) BPFRoot(info Info) string { return s.pinRoot(info.Name) }
