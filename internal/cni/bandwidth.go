// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"mustang/internal/nl"
	"mustang/internal/podlink"
)

// limits are the runtime's limits as those of a link.
func (b Bandwidth) limits() podlink.Bandwidth {
	return podlink.Bandwidth{
		ToPod:   nl.RateLimit{Rate: b.IngressRate, Burst: b.IngressBurst},
		FromPod: nl.RateLimit{Rate: b.EgressRate, Burst: b.EgressBurst},
	}
}

// limit gives the pod's link the bandwidth that the runtime asks for. The limits go
// with the devices.
func (a *attachment) limit() error {
	if a.config.Runtime.Bandwidth == (Bandwidth{}) {
		return nil
	}
	return podlink.SetBandwidth(a.mode, a.network, a.podOf(a.record.Addresses), a.config.Runtime.Bandwidth.limits())
}

// checkBandwidth compares the limits.
func (a *attachment) checkBandwidth() error {
	if a.config.Runtime.Bandwidth == (Bandwidth{}) || a.mode == nil {
		return nil
	}
	return podlink.CheckBandwidth(a.mode, a.network, a.podOf(a.record.Addresses), a.config.Runtime.Bandwidth.limits())
}
