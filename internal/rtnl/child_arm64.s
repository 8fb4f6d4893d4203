// SPDX-License-Identifier: Apache-2.0

#include "textflag.h"

#define SYS_exit_group 94
#define SYS_sendto 206
#define SYS_clone 220
#define SYS_close_range 436
#define CLONE_VM_SIGCHLD 0x111

// func sendInChild(fd int, message unsafe.Pointer, length int) int
// The kernel preserves R9, R10 and R11. A stack of 0 means the caller's stack.
TEXT ·sendInChild(SB), NOSPLIT, $0-32
	MOVD fd+0(FP), R9
	MOVD message+8(FP), R10
	MOVD length+16(FP), R11
	MOVD $CLONE_VM_SIGCHLD, R0
	MOVD ZR, R1
	MOVD ZR, R2
	MOVD ZR, R3
	MOVD ZR, R4
	MOVD $SYS_clone, R8
	SVC
	CBZ R0, child
	MOVD R0, ret+24(FP)
	RET
child:
	MOVD ZR, R0
	SUB $1, R9, R1
	MOVD ZR, R2
	MOVD $SYS_close_range, R8
	SVC
	ADD $1, R9, R0
	MOVW $0xffffffff, R1
	MOVD ZR, R2
	MOVD $SYS_close_range, R8
	SVC
	MOVD R9, R0
	MOVD R10, R1
	MOVD R11, R2
	MOVD ZR, R3
	MOVD ZR, R4
	MOVD ZR, R5
	MOVD $SYS_sendto, R8
	SVC
	MOVD ZR, R0
	MOVD $SYS_exit_group, R8
	SVC
	BRK
