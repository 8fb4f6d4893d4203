// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"

	"mustang/internal/datapath"
	"mustang/internal/nl"
)

// Lab is a network that stands. Its methods are not for several goroutines at
// once.
type Lab struct {
	// Options is what it was built from, with defaults filled in.
	Options Options

	store       Store
	state       *os.File // holds the lock while this process owns the lab
	namespaces  map[string]*nl.Namespace
	datapath    *datapath.Datapath
	devices     map[string]string // the true names of the pods' devices
	cgroup      string            // path of the lab's control group, if it has one
	ovsDatapath string            // that of the lab's Open vSwitch, if it has one
	docker      *dockerClient     // runs commands in containers, if it has any
	children    []*exec.Cmd       // which end with the lab
	guests      guests            // the pods that are virtual machines
	kept        bool
}

// Up builds a lab. It belongs to this process until [Lab.Close] or [Lab.Keep].
// If it fails or ctx ends, nothing of it is left. What makes no sense is an
// [*OptionError]; a name that is taken matches os.ErrExist.
func (s Store) Up(ctx context.Context, o Options) (_ *Lab, err error) {
	o, err = o.withDefaults()
	if err != nil {
		return nil, err
	}
	l := &Lab{Options: o, store: s, namespaces: map[string]*nl.Namespace{}, devices: map[string]string{}}
	if l.state, err = s.claim(o); err != nil {
		return nil, fmt.Errorf("lab %s: %w", o.Name, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("lab %s: %w", o.Name, err), l.Close())
		}
	}()
	if err := l.prepareGuests(ctx); err != nil {
		return nil, err
	}
	for _, topology := range Topologies() {
		if topology.Name == o.Topology {
			return l, topology.build(ctx, l)
		}
	}
	return nil, optionErrorf("unknown topology %q", o.Topology)
}

// addNamespace creates the namespace of a place.
func (l *Lab) addNamespace(place string) (*nl.Namespace, error) {
	ns, err := nl.CreateNamespace(namespaceName(l.Options.Name, place))
	if err != nil {
		return nil, err
	}
	l.namespaces[place] = ns
	return ns, nil
}

// Places returns the names of the places in the lab that have a network
// namespace, sorted: all but guests.
func (l *Lab) Places() []string {
	var places []string
	for place := range l.namespaces {
		places = append(places, place)
	}
	slices.Sort(places)
	return places
}

// Namespace returns the network namespace of a place. It belongs to the lab.
func (l *Lab) Namespace(place string) (*nl.Namespace, error) {
	ns, ok := l.namespaces[place]
	if !ok {
		return nil, fmt.Errorf("lab %s: no %q in it (there are: %s)", l.Options.Name, place, strings.Join(l.Places(), ", "))
	}
	return ns, nil
}

// Device returns the true name of a pod's device: [IfName], or another where the
// link mode needs that, and IfName is an alternative name only.
func (l *Lab) Device(pod string) string { return l.devices[pod] }

// Datapath returns the lab's eBPF datapath, nil when it has none. It belongs to
// the lab.
func (l *Lab) Datapath() *datapath.Datapath { return l.datapath }

// BPFRoot is where the lab's datapath is pinned, whether it has one or not.
func (l *Lab) BPFRoot() string { return l.store.pinRoot(l.Options.Name) }

// Keep makes the lab stand on its own after this process, until [Store.Down].
func (l *Lab) Keep() error {
	if err := l.store.keep(l.Options, l.state); err != nil {
		return fmt.Errorf("lab %s: keep: %w", l.Options.Name, err)
	}
	l.kept = true
	return nil
}

// Close lets go of the lab, and removes it with all that runs in it unless it
// was kept.
func (l *Lab) Close() error {
	var errs []error
	if l.datapath != nil {
		errs = append(errs, l.datapath.Close())
		l.datapath = nil
	}
	for _, ns := range l.namespaces {
		errs = append(errs, ns.Close())
	}
	clear(l.namespaces)
	if l.state != nil {
		if !l.kept {
			errs = append(errs, l.store.destroy(l.Options.Name))
			for _, child := range l.children {
				errs = append(errs, ignoreExit(child.Wait()))
			}
			l.children = nil
		}
		errs = append(errs, l.state.Close())
		l.state = nil
	}
	return errors.Join(errs...)
}
