// SPDX-License-Identifier: Apache-2.0

// Package tun opens TUN and TAP devices and works with their packets in user
// space: it carries them from one device to another, answers them, and says
// what is in them.
//
// Offload means that the kernel hands over, and takes, TCP and UDP packets of up
// to 64 KiB that stand for many on a wire, each behind a header that says how it
// is to be cut (struct virtio_net_hdr). The library golang.zx2c4.com/wireguard
// cuts and joins them wherever packets are looked into. Switch does not look
// into them, and hands them on whole.
package tun
