// SPDX-License-Identifier: Apache-2.0

package objects

// addSender notes in the row of an endpoint whose device it has, and makes the device a sender: earlier layouts did neither.
func (o *Objects) addSender(addr Addr, row *Endpoint) error {
	key := SenderKey{Netns: row.Netns, Ifindex: row.Path.Ifindex}
	if row.Path.Flags&EndpointEgress != 0 {
		row.Path.Flags |= EndpointOnHost
		key.Netns = 0
	}
	mac := row.Path.PodMac
	sender := Sender{Endpoint: row.Id, Mac: mac, Netns: row.Netns, Pod: addr}
	if mac != [6]byte{} {
		// The link-local address that follows from the MAC address (RFC 4291, appendix A).
		sender.LinkLocal.Bytes = [16]byte{0xfe, 0x80, 8: mac[0] ^ 2, mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5]}
	}
	return o.Senders.Put(key, sender)
}
