// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"errors"
	"fmt"
	"runtime"
	"time"
	"unsafe"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"mustang/internal/netns"
)

// DeleteInChild deletes a device of a namespace by its index, with its peer if it has one. It returns when the names,
// addresses and routes of both are free. If the device does not exist it returns nil.
//
// The kernel frees them within about a millisecond, but keeps the caller until one or two RCU grace periods have passed
// (rcu_barrier in netdev_run_todo): 15 to 40 ms at 250 Hz. No signal interrupts the wait, and a process cannot exit
// before its threads. So a child process sends the request. The child shares only the memory of its parent, makes two
// kinds of system calls, and exits after the wait, even if its parent has exited before. It is for processes that
// live for milliseconds (docs/adr/0013).
func DeleteInChild(ns *netns.Namespace, index int) error {
	handle, err := In(ns).Handle()
	if err != nil {
		return err
	}
	defer handle.Close()
	child, err := deleteInChild(ns, index)
	if err != nil { // unsupported processor, or too many processes
		return DeleteLink(handle, index)
	}
	exited := make(chan struct{})
	go func() {
		child.wait()
		close(exited)
	}()
	for pause := firstPoll; ; pause = min(pause*3/2, lastPoll) {
		if _, err := handle.LinkByIndex(index); errors.As(err, &netlink.LinkNotFoundError{}) {
			return nil
		}
		select {
		case <-exited: // the kernel has answered: the device is gone, or a second request returns the error
			return DeleteLink(handle, index)
		case <-time.After(pause):
		}
	}
}

type child struct {
	pid     int
	socket  int
	request []byte // read by the process
}

func deleteInChild(ns *netns.Namespace, index int) (c child, err error) {
	request := nl.NewNetlinkRequest(unix.RTM_DELLINK, 0)
	message := nl.NewIfInfomsg(unix.AF_UNSPEC)
	message.Index = int32(index)
	request.AddData(message)
	c.request = request.Serialize()
	c.socket, err = netns.Get(ns, func() (int, error) {
		return unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	})
	if err != nil {
		return child{}, fmt.Errorf("open netlink socket in network namespace %q: %w", ns.Name(), err)
	}
	if err := c.start(); err != nil {
		_ = unix.Close(c.socket)
		return child{}, err
	}
	return c, nil
}

// start starts the child with all signals blocked, so that no signal handler runs in it.
func (c *child) start() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var all, old unix.Sigset_t
	for i := range all.Val {
		all.Val[i] = ^all.Val[i]
	}
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &all, &old); err != nil {
		return fmt.Errorf("block signals: %w", err)
	}
	c.pid = sendInChild(c.socket, unsafe.Pointer(&c.request[0]), len(c.request))
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &old, nil); err != nil {
		return fmt.Errorf("unblock signals: %w", err)
	}
	if c.pid < 0 {
		return fmt.Errorf("start a process: %w", unix.Errno(-c.pid))
	}
	return nil
}

func (c *child) wait() {
	for {
		if _, err := unix.Wait4(c.pid, nil, 0, nil); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	_ = unix.Close(c.socket)
	runtime.KeepAlive(c.request)
}
