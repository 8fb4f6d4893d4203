// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"errors"
	"io/fs"

	"mustang/internal/datapath"
)

// translateSockets has the node's processes reach services by translation at the
// socket, as far as they are in pods or in the host.
func (a *attachment) translateSockets() error {
	if err := a.openDatapath(); err != nil {
		return err
	}
	if a.checkHost() == nil {
		return nil
	}
	cgroup, err := a.plugin.cgroup()
	if err != nil {
		return err
	}
	if _, err := a.dp.AttachSocket(cgroup); err != nil {
		return err
	}
	_, err = a.dp.AddHost(a.host)
	return err
}

// checkHost looks whether sockets are translated on this node, quickly.
func (a *attachment) checkHost() error {
	cgroup, err := a.plugin.cgroup()
	if err != nil {
		return err
	}
	return a.dp.CheckHost(a.host, cgroup)
}

// cgroup is the control group whose processes' sockets are translated.
func (p *Plugin) cgroup() (string, error) {
	if p.Cgroup != "" {
		return p.Cgroup, nil
	}
	return datapath.CgroupRoot()
}

// serve lets the pod reach services.
func (a *attachment) serve() error {
	if a.config.translatesPackets() {
		a.record.Endpoint = true
		if err := a.record.save(); err != nil {
			return err
		}
		segment, err := a.segment()
		if err != nil {
			return err
		}
		_, _, err = a.dp.AddEndpoint(a.endpoint(segment))
		return err // its sockets are translated with it
	}
	if !a.config.translatesSockets() {
		return nil
	}
	a.record.Admitted = true
	if err := a.record.save(); err != nil {
		return err
	}
	_, err := a.dp.AddSocketPod(a.pod)
	return err
}

// endpoint is the pod as the datapath is told of it.
func (a *attachment) endpoint(segment string) datapath.Attach {
	return datapath.Attach{
		Namespace: a.pod, IfName: a.record.Owner.IfName, Host: a.host, Segment: segment,
		Shaped: a.config.Runtime.Bandwidth.IngressRate > 0,
	}
}

// sharesPod reports whether the pod has another attachment, of any network, which needs
// its sockets translated.
func (a *attachment) sharesPod() bool {
	own := a.plugin.records(a.config.Name).path(a.record.Owner)
	all, _ := a.plugin.recordsLike(a.record.Owner.ContainerID + "@*") // those that can be read
	for path, r := range all {
		if path != own && r.Admitted && r.Cookie == a.record.Cookie {
			return true
		}
	}
	return false
}

// unserve ends what serve began. The pod may be gone.
func (a *attachment) unserve() error {
	if !a.record.Endpoint && !a.record.Admitted {
		return nil
	}
	found, err := a.findDatapath()
	if err != nil || !found {
		return err
	}
	if a.record.Endpoint {
		// All addresses of an endpoint go with the first.
		for _, ip := range a.record.Addresses {
			if err := a.dp.DeleteEndpointIP(ip); err == nil || !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	if a.record.Admitted && !a.sharesPod() {
		if err := a.dp.DeleteSocketPod(a.record.Cookie); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
