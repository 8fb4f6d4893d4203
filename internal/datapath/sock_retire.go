// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/cilium/ebpf/link"

	"mustang/internal/nl"
)

// retireSockets ends the connected UDP sockets whose backend their service has no longer. Their programs get ECONNABORTED
// when they receive, EDESTADDRREQ when they send, and may connect again; otherwise they would send to nobody for ever. Sockets are found in namespaces that
// have a name or a process. The caller has the lock.
func (d *Datapath) retireSockets() error {
	p, err := d.socketProgram(sockProgRetireUdp)
	if errors.Is(err, os.ErrNotExist) {
		return nil // no cgroup has ever had the programs
	}
	if err != nil {
		return err
	}
	defer func() { _ = p.Close() }()
	flags, err := d.admitted()
	if err != nil || len(flags) == 0 {
		return err
	}
	iter, err := link.AttachIter(link.IterOptions{Program: p})
	if err != nil {
		return fmt.Errorf("go through UDP sockets: %w", err)
	}
	defer func() { _ = iter.Close() }()
	return eachNamespace(func(ns *nl.Namespace, cookie uint64) error {
		if flags[cookie] == 0 {
			return nil
		}
		if err := ns.Do(func() error { return run(iter) }); err != nil {
			return fmt.Errorf("go through UDP sockets in %q: %w", ns.Name(), err)
		}
		return nil
	})
}

// run goes through what there is in the calling thread's namespace.
func run(iter *link.Iter) error {
	all, err := iter.Open()
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, all)
	return errors.Join(err, all.Close())
}

// eachNamespace calls fn with the network namespaces that have a name or a process. Those that go meanwhile are left out.
func eachNamespace(fn func(ns *nl.Namespace, cookie uint64) error) (err error) {
	census, err := nl.TakeCensus()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, census.Close()) }()
	for _, ns := range census.Namespaces() {
		cookie, err := ns.Cookie()
		if err != nil {
			return err
		}
		if err := fn(ns, cookie); err != nil {
			return err
		}
	}
	return nil
}
