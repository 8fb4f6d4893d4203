// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"fmt"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"mustang/internal/cni/netconf"
	"mustang/internal/netns"
	"mustang/internal/rtnl"
)

const loopbackDevice = "lo"

// AddLoopback sets up the loopback device of a pod, which containerd requests for each pod. It returns the result of
// the previous plugin, or the device and its addresses.
func (p *Plugin) AddLoopback(r Request) (*types100.Result, error) {
	var device rtnl.Device
	err := inPod(r, func(pod rtnl.Conn) (err error) {
		if err := pod.SetUp(loopbackDevice, true); err != nil {
			return err
		}
		device, err = pod.Device(loopbackDevice)
		return err
	})
	if err != nil {
		return nil, err
	}
	if head := netconf.ParseHead(r.Config); head.PrevResult != nil {
		return netconf.Config{CNIVersion: head.CNIVersion, PrevResult: head.PrevResult}.PreviousResult()
	}
	result := &types100.Result{
		CNIVersion: types100.ImplementedSpecVersion,
		Interfaces: []*types100.Interface{{Name: loopbackDevice, Mac: macText(nil), Sandbox: r.Netns}},
	}
	for _, a := range device.Addrs {
		result.IPs = append(result.IPs, &types100.IPConfig{Interface: types100.Int(0), Address: ipNet(a)})
	}
	return result, nil
}

// DelLoopback sets the loopback device of a pod down. A missing namespace is not an error.
func (p *Plugin) DelLoopback(r Request) error {
	if pod, err := netns.Open(r.Netns); err != nil {
		return nil
	} else if err := pod.Close(); err != nil {
		return err
	}
	return inPod(r, func(pod rtnl.Conn) error { return pod.SetUp(loopbackDevice, false) })
}

// CheckLoopback returns an error if the loopback device of a pod is down.
func (p *Plugin) CheckLoopback(r Request) error {
	return inPod(r, func(pod rtnl.Conn) error {
		device, err := pod.Device(loopbackDevice)
		if err == nil && !device.Up {
			err = fmt.Errorf("device %q in network namespace %s is down", loopbackDevice, r.Netns)
		}
		return err
	})
}

func inPod(r Request, do func(rtnl.Conn) error) error {
	host, err := netns.Current()
	if err != nil {
		return err
	}
	defer host.Close()
	pod, err := r.openPod(r.Netns, host)
	if err != nil {
		return err
	}
	defer pod.Close()
	return do(rtnl.In(pod))
}
