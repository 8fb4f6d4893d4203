// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"errors"
	"fmt"
	"slices"

	"mustang/internal/datapath"
	"mustang/internal/podlink"
)

// checkDatapath looks for all that the node's datapath has for the pod.
func (a *attachment) checkDatapath() error {
	sockets, ports := a.config.translatesSockets(), len(a.record.Ports) > 0
	if !a.record.Endpoint && !a.record.Admitted && !ports {
		return nil
	}
	found, err := a.findDatapath()
	if err != nil {
		return err
	}
	if !found {
		return fmt.Errorf("%s: its datapath is gone from %s", a.where(), or(a.plugin.BPFRoot, datapath.DefaultRoot))
	}
	errs := []error{a.checkServices()}
	if sockets || ports {
		errs = append(errs, a.checkHost())
	}
	if ports {
		errs = append(errs, a.checkPorts(), a.checkUplink())
	}
	return errors.Join(errs...)
}

// checkServices looks for the pod in the datapath, and for the programs on it.
func (a *attachment) checkServices() error {
	if a.record.Admitted {
		return a.checkSockets()
	}
	if !a.record.Endpoint {
		return nil
	}
	segment, err := a.segment()
	if err != nil {
		return err
	}
	return a.dp.CheckEndpoint(a.endpoint(segment))
}

// segment is the bridge of pods whose programs sit on their own devices.
func (a *attachment) segment() (string, error) {
	if a.config.Chained {
		return "", nil
	}
	mode, err := podlink.Lookup(a.record.Link)
	if err != nil {
		return "", err
	}
	return podlink.Segment(mode, podlink.Network{Host: a.host, Bridge: a.record.Bridge, OVSDB: a.record.OVSDB})
}

// checkSockets looks for the pod among those whose sockets are translated.
func (a *attachment) checkSockets() error {
	pods, err := a.dp.SocketPods()
	if err == nil && !slices.Contains(pods, a.record.Cookie) {
		err = fmt.Errorf("%s: its sockets are not translated to services: the datapath does not know the pod", a.where())
	}
	return err
}

// checkPorts looks for the services of the host's ports.
func (a *attachment) checkPorts() error {
	for _, port := range a.record.Ports {
		mine, err := a.leads(port)
		if err != nil {
			return err
		}
		if !mine {
			return fmt.Errorf("host port %s does not lead to %v", port, port.Backends)
		}
	}
	return nil
}
