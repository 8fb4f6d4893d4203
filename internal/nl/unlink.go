// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"errors"
	"fmt"
	"runtime"
	"time"
	"unsafe"

	"github.com/vishvananda/netlink"
	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

const (
	// unlinkPoll is the first pause between two looks at whether a device is gone.
	// Each is half as long again as the one before, up to lastUnlinkPoll.
	unlinkPoll     = 30 * time.Microsecond
	lastUnlinkPoll = 2 * time.Millisecond
)

// DeleteLink deletes the device of that index in n, with its other end if it is
// one of a pair, and returns when nobody finds them any more: their names,
// addresses and routes are free. It is no error if there is none. The handle is one
// of n's.
//
// The kernel does that in about a millisecond, and then keeps who asked for it
// until a grace period of RCU has passed, or two (rcu_barrier in
// netdev_run_todo): 15 to 40 ms at 250 Hz, in which nothing is left to wait for.
// No signal ends that wait, and a process can't end before its threads. So it is
// not ours that asks, but a child, which shares our memory and nothing else, makes
// two kinds of system call, and is gone after the wait, be it long after us.
func (n *Namespace) DeleteLink(handle *netlink.Handle, index int) error {
	child, err := n.deleteByChild(index)
	if err != nil { // there is no child: not on this processor, or too many processes
		return deleteLink(handle, index)
	}
	ended := make(chan struct{})
	go func() {
		child.wait()
		close(ended)
	}()
	for pause := unlinkPoll; ; pause = min(pause*3/2, lastUnlinkPoll) {
		_, err := handle.LinkByIndex(index)
		if errors.As(err, &netlink.LinkNotFoundError{}) {
			return nil
		}
		select {
		case <-ended: // the kernel has answered: it is gone by now, or asking again tells why not
			if err := deleteLink(handle, index); !errors.Is(err, unix.ENODEV) {
				return err
			}
			return nil
		case <-time.After(pause):
		}
	}
}

// deleteLink waits for all that the kernel does.
func deleteLink(handle *netlink.Handle, index int) error {
	return handle.LinkDel(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: index}})
}

// unlinker is a child process that deletes a device.
type unlinker struct {
	pid     int
	socket  int
	request []byte // the child reads it
}

// deleteByChild has a child delete a device.
func (n *Namespace) deleteByChild(index int) (child unlinker, err error) {
	request := vnl.NewNetlinkRequest(unix.RTM_DELLINK, 0)
	message := vnl.NewIfInfomsg(unix.AF_UNSPEC)
	message.Index = int32(index)
	request.AddData(message)
	child.request = request.Serialize()
	err = n.Do(func() (err error) {
		child.socket, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
		return err
	})
	if err != nil {
		return unlinker{}, fmt.Errorf("open netlink socket in network namespace %q: %w", n.Name(), err)
	}
	if err := child.start(); err != nil {
		_ = unix.Close(child.socket)
		return unlinker{}, err
	}
	return child, nil
}

// start starts the child with all signals blocked, so that no handler runs in it.
func (u *unlinker) start() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var all, old unix.Sigset_t
	for i := range all.Val {
		all.Val[i] = ^all.Val[i]
	}
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &all, &old); err != nil {
		return fmt.Errorf("block signals: %w", err)
	}
	u.pid = sendByChild(u.socket, unsafe.Pointer(&u.request[0]), len(u.request))
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &old, nil); err != nil {
		return fmt.Errorf("unblock signals: %w", err)
	}
	if u.pid < 0 {
		return fmt.Errorf("start a process: %w", unix.Errno(-u.pid))
	}
	return nil
}

// wait returns when the child has ended.
func (u *unlinker) wait() {
	for {
		if _, err := unix.Wait4(u.pid, nil, 0, nil); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	_ = unix.Close(u.socket)
	runtime.KeepAlive(u.request)
}
