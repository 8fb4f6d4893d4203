// SPDX-License-Identifier: Apache-2.0

#include "textflag.h"

// func count(n uint64)
// Two instructions per turn, which a processor runs in parallel.
TEXT ·count(SB), NOSPLIT, $0-8
	MOVQ n+0(FP), CX
loop:
	DECQ CX
	JNZ  loop
	RET

// func divide(n uint64)
// Five instructions per turn, each waiting for the one before, one of them slow
// on any processor.
TEXT ·divide(SB), NOSPLIT, $0-8
	MOVQ n+0(FP), CX
	MOVQ $3, R8
	MOVQ $0x7000000000000001, R9
	MOVQ R9, AX
loop:
	XORL DX, DX
	DIVQ R8
	ORQ  R9, AX
	DECQ CX
	JNZ  loop
	RET
