"""States of a notebook, one line each: its exported cells, what happens then, and the"
" expression that a job computes.

COURSE has whole notebooks in the style of courses, which run from top to bottom. PUBLIC has what public notebooks
showed, each beside a neighbour that must be refused.

A step is the source of a scratch cell, or ("edit", cell, its new text, which does not run), ("editrun", ...),
("run", cell), ("del", cell), ("insert", before which cell, its text) or ("move", cell, to where).
"""

DRIFT = {
    "aug assign by loop": (["L=[1]"], ["for i in range(2): L.append(i)"], "L"),
    "matmul inplace": (["import numpy as np", "W=np.eye(2)"], ["W@=W*2"], "W.tolist()"),
    "array view sort": (["import numpy as np", "W=np.array([3,1,2])"], ["W.sort()"], "W.tolist()"),
    "np.put": (["import numpy as np", "W=np.zeros(3)"], ["np.put(W,[0],[9])"], "W.tolist()"),
    "array flags": (
        ["import numpy as np", "W=np.zeros(3)"],
        ["W.setflags(write=False)"],
        "W.flags.writeable",
    ),
    "array dtype": (["import numpy as np", "W=np.zeros(3)"], ["W=W.astype('float32')"], "W.dtype"),
    "structured array": (
        ["import numpy as np", "W=np.zeros(2,dtype=[('a','i4')])"],
        ["W['a']=3"],
        "W.tolist()",
    ),
    "object array": (
        ["import numpy as np", "W=np.array([[1],[2]],dtype=object)", "W[0]=[5]"],
        ["W[1]=[7]"],
        "W.tolist()",
    ),
    "global lambda": (["f=lambda x:x+1"], ["f=lambda x:x+2"], "f(1)"),
    "lambda default": (["def f(x,k={'a':1}): return k['a']+x"], ["f.__defaults__[0]['a']=5"], "f(1)"),
    "kwdefaults": (["def f(*,k=1): return k"], ["f.__kwdefaults__['k']=5"], "f()"),
    "code object": (["def f(): return 1", "def g(): return 2"], ["f.__code__=g.__code__"], "f()"),
    "wrapped": (
        ["import functools\n@functools.lru_cache\ndef f(x): return x"],
        ["f.__wrapped__.__code__=(lambda x: x+5).__code__"],
        "f(3)",
    ),
    "lru cached value": (
        ["import functools\nK=[1]\n@functools.lru_cache\ndef f(): return K[0]"],
        ["K[0]=2; f(); K[0]=1"],
        "f()",
    ),
    "cached_property": (
        [
            "from functools import cached_property\nclass A:\n    @cached_property\n"
            "    def v(self): return [1]",
            "A1=A()",
        ],
        ["A1.v.append(3)"],
        "A1.v",
    ),
    "property replaced": (
        ["class A:\n    @property\n    def v(self): return 1", "A1=A()"],
        ["A.v=property(lambda self: 2)"],
        "A1.v",
    ),
    "class dict of base": (["class B:\n    k=1\nclass C(B): pass", "C1=C()"], ["B.k=2"], "C1.k"),
    "bases": (
        ["class A:\n    def f(self): return 1\nclass B:\n    def f(self): return 2\nclass C(A): pass"],
        ["C.__bases__=(B,)"],
        "C().f()",
    ),
    "instance class": (["class A: v=1\nclass B: v=2", "a=A()"], ["a.__class__=B"], "a.v"),
    "instance attr": (["class A: pass", "a=A()\na.x=1"], ["a.x=2"], "a.x"),
    "instance attr by vars": (["class A: pass", "a=A()\na.x=1"], ["vars(a).update(x=2)"], "a.x"),
    "metaclass attr": (["class M(type): k=1\nclass A(metaclass=M): pass"], ["M.k=2"], "A.k"),
    "abc register": (
        ["from abc import ABC\nclass A(ABC): pass\nclass B: pass"],
        ["A.register(B)"],
        "issubclass(B,A)",
    ),
    "enum extended": (["from enum import Enum\nclass E(Enum): A=1"], ["E.A._value_=2"], "E.A.value"),
    "namedtuple default": (
        ["from collections import namedtuple\nP=namedtuple('P','x',defaults=[1])"],
        ["P.__new__.__defaults__=(2,)"],
        "P()",
    ),
    "defaultdict factory": (
        ["from collections import defaultdict\nD=defaultdict(int)"],
        ["D.default_factory=list"],
        "D['a']",
    ),
    "chainmap": (["from collections import ChainMap\nC=ChainMap({'a':1})"], ["C.maps[0]['a']=2"], "C['a']"),
    "userdict": (["from collections import UserDict\nD=UserDict(a=1)"], ["D.data['a']=2"], "D['a']"),
    "heap": (["H=[3,2,1]"], ["import heapq; heapq.heapify(H)"], "H"),
    "shuffle": (["import random\nL=list(range(50))"], ["random.Random(1).shuffle(L)"], "L"),
    "array module": (["import array\nA=array.array('i',[1,2])"], ["A[0]=7"], "A.tolist()"),
    "memoryview": (["B=bytearray(b'ab')\nV=memoryview(B)"], ["V[0]=0x7a"], "bytes(B)"),
    "stringio": (["import io\nS=io.StringIO('abc')"], ["S.write('zz')"], "S.getvalue()"),
    "itertools count": (["import itertools\nC=itertools.count()"], ["next(C)"], "next(C)"),
    "iterator": (["I=iter([1,2,3])"], ["next(I)"], "next(I)"),
    "generator": (["def g():\n    yield 1\n    yield 2", "G=g()"], ["next(G)"], "next(G)"),
    "zip object": (["Z=zip([1,2],[3,4])"], ["next(Z)"], "next(Z)"),
    "map object": (["Z=map(str,[1,2])"], ["next(Z)"], "next(Z)"),
    "itemgetter": (["from operator import itemgetter\ng=itemgetter(0)"], ["g=itemgetter(1)"], "g([1,2])"),
    "regex": (["import re\nR=re.compile('a')"], ["R=re.compile('b')"], "R.pattern"),
    "date": (["import datetime as dt\nD=dt.date(2020,1,1)"], ["D=D.replace(year=2021)"], "D"),
    "decimal context": (["from decimal import Decimal\nD=Decimal('1')"], ["D+=1"], "D"),
    "fraction": (["from fractions import Fraction\nF=Fraction(1,2)"], ["F*=2"], "F"),
    "path": (["from pathlib import Path\nP=Path('a')"], ["P=P/'b'"], "P"),
    "module attr own": (["import types\nM=types.SimpleNamespace(a=1)"], ["M.__dict__['a']=4"], "M.a"),
    "types.ModuleType": (["import types\nM=types.ModuleType('m')\nM.a=1"], ["M.a=2"], "M.a"),
    "config object": (
        [
            "class Cfg:\n    def __init__(self): self.lr=1\n    def set(self,**k): self.__dict__.update(k)",
            "C=Cfg()",
        ],
        ["C.set(lr=3)"],
        "C.lr",
    ),
    "getattr object": (
        [
            "class Cfg:\n    def __init__(self): object.__setattr__(self,'d',{'a':1})\n"
            "    def __getattr__(self,n): return object.__getattribute__(self,'d')[n]",
            "C=Cfg()",
        ],
        ["C.d['a']=5"],
        "C.a",
    ),
    "closure counter": (
        [
            "def mk():\n    n=0\n    def f():\n        nonlocal n\n        n+=1\n        return n\n"
            "    return f",
            "f=mk()",
        ],
        ["f()"],
        "f()",
    ),
    "nested closure": (
        ["def mk(d):\n    def f(): return (lambda: d['a'])()\n    return f", "f=mk({'a':1})"],
        ["f.__closure__[0].cell_contents['a']=2"],
        "f()",
    ),
    "partial func": (
        ["from functools import partial\ndef h(x,k=1): return k", "p=partial(h,1)"],
        ["p=partial(h,1,k=4)"],
        "p()",
    ),
    "bound method": (
        ["class A:\n    def __init__(self): self.x=1\n    def f(self): return self.x", "m=A().f"],
        ["m.__self__.x=2"],
        "m()",
    ),
    "weakref dict": (
        ["import weakref\nclass A: pass\na=A()\nW=weakref.WeakValueDictionary(a=a)"],
        ["del W['a']"],
        "len(W)",
    ),
    "context var": (["import contextvars\nV=contextvars.ContextVar('v',default=1)"], ["V.set(2)"], "V.get()"),
    "torch module param": (
        ["import torch\ntorch.manual_seed(0)\nN=torch.nn.Linear(1,1)"],
        ["N.requires_grad_(False)"],
        "N.weight.requires_grad",
    ),
    "torch module train": (["import torch\nN=torch.nn.Dropout(0.5)"], ["N.eval()"], "N.training"),
    "torch hook": (
        ["import torch\nN=torch.nn.Identity()"],
        ["N.register_forward_hook(lambda m,a,o: o*2)"],
        "float(N(torch.ones(1)))",
    ),
    "torch default dtype": (
        ["import torch\ndef mk(): return torch.ones(1).dtype"],
        ["torch.set_default_dtype(torch.float64)"],
        "mk()",
    ),
    "optimizer lr": (
        ["import torch\np=torch.nn.Parameter(torch.ones(1))\nO=torch.optim.SGD([p],lr=1.)"],
        ["O.param_groups[0]['lr']=5."],
        "O.param_groups[0]['lr']",
    ),
    "optimizer step": (
        ["import torch\np=torch.nn.Parameter(torch.ones(1))\nO=torch.optim.SGD([p],lr=1.)"],
        ["p.grad=torch.ones(1); O.step()"],
        "float(p)",
    ),
    "buffer": (
        ["import torch\nB=torch.nn.BatchNorm1d(1)"],
        ["B.running_mean.add_(1)"],
        "float(B.running_mean)",
    ),
    "sparse": (["import torch\nS=torch.eye(2).to_sparse()"], ["S=S*2"], "S.to_dense().tolist()"),
    "scipy sparse": (["import scipy.sparse as sp\nS=sp.eye(2).tocsr()"], ["S.data[:]=3"], "S.sum()"),
    "pandas index": (
        ["import pandas as pd\nF=pd.DataFrame({'a':[1,2]})"],
        ["F.index=[5,6]"],
        "list(F.index)",
    ),
    "pandas attrs": (["import pandas as pd\nF=pd.Series([1,2])"], ["F.iloc[0]=8"], "F.tolist()"),
    "pandas inplace": (
        ["import pandas as pd\nF=pd.DataFrame({'a':[2,1]})"],
        ["F.sort_values('a',inplace=True)"],
        "F.a.tolist()",
    ),
    "sklearn fit": (
        ["from sklearn.linear_model import LinearRegression\nM=LinearRegression()"],
        ["M.fit([[0],[1]],[0,1])"],
        "hasattr(M,'coef_')",
    ),
    "sklearn params": (
        ["from sklearn.linear_model import Ridge\nM=Ridge(alpha=1.)"],
        ["M.set_params(alpha=3.)"],
        "M.alpha",
    ),
    "sys modules value": (["import math\ndef f(): return math.pi"], ["math.pi=3"], "f()"),
    "third-party constant": (["import string\ndef f(): return string.digits"], ["string.digits='0'"], "f()"),
    "third-party class method": (
        ["import collections\ndef f(): return collections.Counter('a').most_common()"],
        ["collections.Counter.most_common=lambda self: 5"],
        "f()",
    ),
    "builtins": (["def f(): return bin(1)"], ["import builtins; builtins.bin=lambda x: 7"], "f()"),
    "builtins new name": (["def f(): return total([1])"], ["import builtins; builtins.total=sum"], "f()"),
    "environ": (
        ["import os\ndef f(): return os.environ.get('LR_STATE','1')"],
        ["os.environ['LR_STATE']='5'"],
        "f()",
    ),
    "decimal ctx": (
        ["import decimal\ndef f(): return decimal.getcontext().prec"],
        ["decimal.getcontext().prec=5"],
        "f()",
    ),
    "recursion limit": (
        ["import sys\ndef f(): return sys.getrecursionlimit()"],
        ["sys.setrecursionlimit(4321)"],
        "f()",
    ),
    "edited not run": (["A=1"], [("edit", 0, "A=2")], "A"),
    "edited run other reads": (["A=1", "B=A+1"], [("editrun", 0, "A=5")], "B"),
    "edited only print then value": (["A=1\nprint(A)"], [("edit", 0, "A=3\nprint(A)")], "A"),
    "deleted cell": (["A=1", "A=2"], [("del", 1)], "A"),
    "reverse run": (["A=1", "A=A+1"], [("run", 0)], "A"),
    "twice run": (["A=[]", "A.append(1)"], [("run", 1)], "A"),
    "scratch rebinding then restore wrongly": (["A=1"], ["old=A; A=2", "A=old+2"], "A"),
    "import alias": (["import numpy as np"], ["import math as np"], "np.__name__"),
    "import shadow function": (["from math import sqrt"], ["def sqrt(x): return 0"], "sqrt(4)"),
    "with scratch": (["A=1"], ["import contextlib\nwith contextlib.nullcontext(5) as A: pass"], "A"),
    "for scratch": (["A=1"], ["for A in range(4): pass"], "A"),
    "except scratch": (["A=1"], ["try:\n    1/0\nexcept ZeroDivisionError as e:\n    A=e.args"], "A"),
    "del scratch": (["A=1", "def g(): return 'A' in globals()"], ["del A"], "g()"),
    "walrus scratch": (["A=1"], ["(A:=7)"], "A"),
    "comprehension walrus": (["A=1"], ["[A:=i for i in range(4)]"], "A"),
    "magic capture": (["A=1"], ["%%capture A\nprint(3)"], "str(A)[:1]"),
    "shell var": (["A=1"], ["A = !echo hi"], "str(A)[:3]"),
    "ns exec": (["A=1"], ["ns=globals(); ns.__setitem__('A',9)"], "A"),
    "frame": (["A=1"], ["import sys\ndef q(): sys._getframe(1).f_globals['A']=3\nq()"], "A"),
    "main module": (["A=1"], ["import __main__; __main__.A=3"], "A"),
    "staticmethod replaced": (
        ["class A:\n    @staticmethod\n    def f(): return 1"],
        ["A.f=staticmethod(lambda: 2)"],
        "A.f()",
    ),
    "classmethod state": (
        ["class A:\n    n=[]\n    @classmethod\n    def add(c): c.n.append(1)"],
        ["A.add()"],
        "A.n",
    ),
    "slots class": (
        ["class P:\n    __slots__=('x',)\n    def __init__(s): s.x=1", "p=P()"],
        ["p.x=2"],
        "p.x",
    ),
    "frozen dataclass": (
        ["from dataclasses import dataclass\n@dataclass(frozen=True)\nclass C: x:int=1", "c=C()"],
        ["object.__setattr__(c,'x',4)"],
        "c.x",
    ),
    "dataclass field default": (
        ["from dataclasses import dataclass,field\n@dataclass\nclass C: x:int=1"],
        ["C.__init__.__defaults__=(9,)"],
        "C().x",
    ),
    "typed dict": (
        ["from typing import TypedDict\nclass T(TypedDict): a:int", "t=T(a=1)"],
        ["t['a']=2"],
        "t",
    ),
    "set of tuples": (["S={(1,2),(3,4)}"], ["S.remove((1,2))"], "sorted(S)"),
    "frozenset": (["S=frozenset([1])"], ["S|={2}"], "sorted(S)"),
    "bytes": (["B=b'a'"], ["B+=b'b'"], "B"),
    "complex": (["C=1+2j"], ["C*=2"], "C"),
    "minus zero": (["Z=0.0"], ["Z=-0.0"], "str(Z)"),
    "int float": (["N=1"], ["N=1.0"], "type(N)"),
    "bool int": (["N=1"], ["N=True"], "N is True"),
    "list tuple": (["N=[1]"], ["N=(1,)"], "N"),
    "dict order": (["D={'a':1,'b':2}"], ["D['a']=D.pop('a')"], "list(D)"),
    "shared reference": (["a=[1]\nb=a\nc=[a,b]"], ["c=[[1],[1]]"], "c[0] is c[1]"),
    "dict subclass attr": (["class D(dict): pass", "d=D(a=1)\nd.k=1"], ["d.k=2"], "d.k"),
    "list subclass": (["class L(list): pass", "l=L([1])"], ["l.append(2)"], "l"),
    "exception class": (["class Err(Exception): code=1"], ["Err.code=2"], "Err.code"),
    "doc used": (["def f():\n    'one'\n    return f.__doc__"], ["f.__doc__='two'"], "f()"),
    "annotations used": (
        ["def f(x:int): pass\ndef g(): return str(f.__annotations__)"],
        ["f.__annotations__['x']=str"],
        "g()",
    ),
    "class annotations": (
        ["class A:\n    x:int=1\ndef g(): return str(A.__annotations__)"],
        ["A.__annotations__['x']=str"],
        "g()",
    ),
    "name of function": (["def f(): return f.__name__"], ["f.__name__='z'"], "f()"),
    "thread local": (["import threading\nT=threading.local()\nT.x=1"], ["T.x=2"], "T.x"),
    "logging level": (
        ["import logging\nlog=logging.getLogger('pk')\ndef f(): return log.level"],
        ["log.setLevel(10)"],
        "f()",
    ),
    "queue": (["import queue\nQ=queue.Queue()"], ["Q.put(1)"], "Q.qsize()"),
    "csv dialect": (
        ["import csv\ndef f(): return 'zz' in csv.list_dialects()"],
        ["csv.register_dialect('zz')"],
        "f()",
    ),
    "setter function": (["CFG={'lr':1}\ndef set_lr(x): CFG['lr']=x"], ["set_lr(5)"], "CFG['lr']"),
    "global counter read": (
        ["N=0\ndef step():\n    global N\n    N+=1\n    return N"],
        ["step(); step()"],
        "step()",
    ),
    "append by own function": (["LOG=[]\ndef log(x): LOG.append(x)"], ["log(1)"], "LOG"),
    "global flag setter": (
        ["DEBUG=False\ndef debug(on=True):\n    global DEBUG\n    DEBUG=on"],
        ["debug()"],
        "DEBUG",
    ),
    "lru of edited value": (
        ["K=1", "import functools\n@functools.lru_cache\ndef f(): return K", "def g(): return f()"],
        ["g()", ("editrun", 0, "K=2")],
        "g()",
    ),
    "cache of edited helper": (
        ["def h(): return 1", "from functools import cache\n@cache\ndef f(x): return x+h()"],
        ["f(1)", ("editrun", 0, "def h(): return 2")],
        "f(1)",
    ),
    "memo stale": (
        ["K=1", "MEMO={}\ndef f(x):\n    if x not in MEMO: MEMO[x]=x*K\n    return MEMO[x]"],
        ["f(3)", ("editrun", 0, "K=2")],
        "f(3)",
    ),
    "method lru": (
        [
            "import functools\nclass A:\n    k=1\n    @functools.lru_cache\n    def f(self): return self.k",
            "a=A()",
        ],
        ["A.k=2; a.f(); A.k=1"],
        "a.f()",
    ),
    "env direct": (
        ["import os\ndef f(): return os.environ['LR_X'] if 'LR_X' in os.environ else '1'"],
        ["import os\nos.environ['LR_X']='5'"],
        "f()",
    ),
    "env getenv": (["import os\ndef f(): return os.getenv('LR_Y')"], ["os.environ.update(LR_Y='5')"], "f()"),
    "env magic": (["from os import getenv\ndef f(): return getenv('LR_Z','1')"], ["%env LR_Z=7"], "f()"),
    "env at import": (
        ["import os\nLR=float(os.environ.get('LR_W','1'))"],
        ["import os\nos.environ['LR_W']='3'", ("run", 0)],
        "LR",
    ),
    "chdir": (["import os\ndef f(): return os.getcwd()"], ["import os; os.chdir('/')"], "f()"),
    "cd magic": (["from pathlib import Path\ndef f(): return str(Path('x').resolve())"], ["%cd /tmp"], "f()"),
    "run file": (["A=1"], ["open('_z.py','w').write('A=5')", "%run -i _z.py"], "A"),
    "run_cell": (["A=1"], ["get_ipython().run_cell('A=4')"], "A"),
    "capture": (["A=[1]"], ["%%capture\nA.append(2)"], "A"),
    "time magic": (["A=1"], ["%time A=9"], "A"),
    "out use": (["L=[1]\ndef f(): return L"], ["f()", "_.append(5)"], "f()"),
    "Out history": (["D={'a':1}"], ["D", "Out[max(Out)]['a']=9"], "D"),
    "default mutable called": (["def f(x, acc=[]):\n    acc.append(x)\n    return acc"], ["f(1)"], "f(2)"),
    "class list by instance": (
        ["class A:\n    items=[]\n    def add(self,x): self.items.append(x)"],
        ["A().add(1)"],
        "A.items",
    ),
    "function's own cache changed by its name": (
        ["def f(x):\n    if x not in f.kept: f.kept[x]=x*2\n    return f.kept[x]\nf.kept={}"],
        ["kept = f.kept; kept[2] = 7"],
        "f(2)",
    ),
    "class counter by init": (["class A:\n    n=0\n    def __init__(self): A.n+=1"], ["A(); A()"], "A.n"),
    "metaclass registry": (
        [
            "class M(type):\n    reg=[]\n    def __init__(c,n,b,d): M.reg.append(n)\n"
            "class A(metaclass=M): pass"
        ],
        ["class B(A): pass"],
        "M.reg",
    ),
    "subclasses list": (
        ["class A: pass\ndef names(): return sorted(c.__name__ for c in A.__subclasses__())"],
        ["class Z(A): pass"],
        "names()",
    ),
    "decorator state": (
        [
            "def count(f):\n    def w():\n        w.n+=1\n        return w.n\n    w.n=0\n    return w",
            "@count\ndef f(): pass",
        ],
        ["f(); f()"],
        "f()",
    ),
    "class decorator state": (
        [
            "class Count:\n    def __init__(self,f): self.f=f; self.n=0\n"
            "    def __call__(self): self.n+=1; return self.n",
            "@Count\ndef f(): pass",
        ],
        ["f()"],
        "f()",
    ),
    "partial over edited": (
        ["def h(a): return a", "from functools import partial\np=partial(h,1)"],
        [("editrun", 0, "def h(a): return a+1")],
        "p()",
    ),
    "bound method kept": (
        ["class A:\n    def f(self): return 1", "run=A().f"],
        [("editrun", 0, "class A:\n    def f(self): return 2")],
        "run()",
    ),
    "instance of old class": (["class A:\n    k=1", "a=A()"], [("editrun", 0, "class A:\n    k=2")], "a.k"),
    "subclass of old base": (
        ["class A:\n    k=1", "class B(A): pass"],
        [("editrun", 0, "class A:\n    k=2")],
        "B.k",
    ),
    "dataclass field edit": (
        ["from dataclasses import dataclass\n@dataclass\nclass C: lr:float=1.", "c=C()"],
        [("editrun", 0, "from dataclasses import dataclass\n@dataclass\nclass C: lr:float=2.")],
        "c.lr",
    ),
    "default bound early": (["K=1", "def f(x=K): return x"], [("editrun", 0, "K=2")], "f()"),
    "enum member edited": (
        ["from enum import Enum\nclass E(Enum): A=1", "DEFAULT=E.A"],
        [("editrun", 0, "from enum import Enum\nclass E(Enum): A=2")],
        "DEFAULT.value",
    ),
    "numpy view base": (
        ["import numpy as np\nbase=np.zeros(4)\nview=base[:2]"],
        ["view+=1"],
        "base.tolist()",
    ),
    "numpy order": (
        ["import numpy as np\nW=np.zeros((2,2))"],
        ["W=np.asfortranarray(W)"],
        "W.flags.f_contiguous",
    ),
    "masked": (["import numpy as np\nM=np.ma.array([1,2,3])"], ["M[0]=np.ma.masked"], "M.sum()"),
    "numpy errstate": (
        ["import numpy as np\ndef f(): return np.geterr()['divide']"],
        ["np.seterr(divide='raise')"],
        "f()",
    ),
    "torch state dict": (
        ["import torch\ntorch.manual_seed(0)\nN=torch.nn.Linear(2,2)"],
        ["N.load_state_dict({k:v*0 for k,v in N.state_dict().items()})"],
        "float(N.weight.sum())",
    ),
    "torch grad filled": (
        ["import torch\nT=torch.ones(2,requires_grad=True)"],
        ["(T*2).sum().backward()"],
        "T.grad is None",
    ),
    "torch submodule": (
        ["import torch\nN=torch.nn.Sequential(torch.nn.ReLU())"],
        ["N.append(torch.nn.Tanh())"],
        "len(N)",
    ),
    "scheduler stepped": (
        [
            "import torch\np=torch.nn.Parameter(torch.ones(1))\nO=torch.optim.SGD([p],lr=1.)\n"
            "S=torch.optim.lr_scheduler.StepLR(O,1)"
        ],
        ["O.step(); S.step()"],
        "O.param_groups[0]['lr']",
    ),
    "pandas attrs dict": (
        ["import pandas as pd\nF=pd.DataFrame({'a':[1,2]})"],
        ["F.attrs['k']=1"],
        "F.attrs",
    ),
    "pandas drop inplace": (
        ["import pandas as pd\nF=pd.DataFrame({'a':[1,2]})\nG=F"],
        ["G.drop(0,inplace=True)"],
        "len(F)",
    ),
    "monkeypatch third-party function": (
        ["import statistics\ndef f(): return statistics.mean([1,3])"],
        ["statistics.mean=lambda x: 9"],
        "f()",
    ),
    "monkeypatch class deep": (
        ["import pathlib\ndef f(): return pathlib.Path('a').stem"],
        ["from pathlib import PurePath\nPurePath.stem=property(lambda s:'zz')"],
        "f()",
    ),
    "monkeypatch mock start": (
        ["import time\ndef f(): return time.strftime('%Y')"],
        ["from unittest.mock import patch\npatch('time.strftime', lambda *a:'1').start()"],
        "f()",
    ),
    "del function": (["def h(): return 1\ndef g(): return 'h' in globals()"], ["del h"], "g()"),
    "del slice": (["L=[1,2,3]"], ["del L[1:]"], "L"),
    "deleted patch cell": (
        ["class A:\n    def f(self): return 1", "A.f=lambda self: 2"],
        [("del", 1)],
        "A().f()",
    ),
    "edited decorator arg": (
        ["def scale(k):\n    def d(f): return lambda: k*f()\n    return d", "@scale(2)\ndef f(): return 1"],
        [("edit", 1, "@scale(3)\ndef f(): return 1")],
        "f()",
    ),
    "edited helper of decorator": (
        ["def scale(f): return lambda: 2*f()", "@scale\ndef f(): return 1"],
        [("editrun", 0, "def scale(f): return lambda: 3*f()")],
        "f()",
    ),
    "edited back to old run": (
        ["A=1", "B=A"],
        [("editrun", 0, "A=2"), ("run", 1), ("editrun", 0, "A=1")],
        "B",
    ),
    "conditional import": (
        ["try:\n    import usjon as js\nexcept ImportError:\n    import json as js"],
        ["import pickle as js"],
        "js.__name__",
    ),
    "async cell": (["L=[1]"], ["import asyncio\nasync def go(): L.append(2)\nawait go()"], "L"),
    "thread": (
        ["L=[1]"],
        ["import threading\nt=threading.Thread(target=L.append,args=(2,)); t.start(); t.join()"],
        "L",
    ),
    "lambda in dict": (["OPS={'a': lambda x: x+1}"], ["OPS['a']=lambda x: x+2"], "OPS['a'](1)"),
    "closure by setter": (
        [
            "def mk():\n    k=1\n    def get(): return k\n    def put(v):\n        nonlocal k\n"
            "        k=v\n    return get, put\nget, put=mk()"
        ],
        ["put(5)"],
        "get()",
    ),
    "descriptor state": (
        [
            "class D:\n    def __init__(self): self.v=1\n    def __get__(self,o,t=None): return self.v\n"
            "class A: x=D()"
        ],
        ["vars(A)['x'].v=2"],
        "A.x",
    ),
    "dunder version": (["__version__='1'"], ["__version__='2'"], "__version__"),
    "dict order swap": (["D={'a':1,'b':2}"], ["D=dict(reversed(D.items()))"], "list(D)"),
    "doc edit of class": (["class A:\n    'one'\ndef f(): return A.__doc__"], ["A.__doc__='two'"], "f()"),
    "importlib reload": (
        ["import string\nD=string.digits"],
        ["import importlib\nstring.digits='0'", ("run", 0)],
        "D",
    ),
    "argparse defaults": (
        ["import argparse\np=argparse.ArgumentParser()\np.add_argument('--lr',default=1)"],
        ["p.set_defaults(lr=5)"],
        "p.parse_args([]).lr",
    ),
    "configparser": (
        ["import configparser\nC=configparser.ConfigParser()\nC['a']={'k':'1'}"],
        ["C['a']['k']='2'"],
        "C['a']['k']",
    ),
    "custom getstate": (
        ["class P:\n    def __init__(s): s.x=1; s.y=1\n    def __getstate__(s): return {'y':s.y}\np=P()"],
        ["p.x=5"],
        "p.x",
    ),
    "unpicklable holder": (
        ["import threading\nclass P:\n    def __init__(s): s.l=threading.Lock(); s.x=1\np=P()"],
        ["p.x=5"],
        "p.x",
    ),
    "module proxy": (["import math as m\ndef f(): return m.tau"], ["vars(m)['tau']=1"], "f()"),
    "recursive type": (
        ["class Node:\n    def __init__(s,v,n=None): s.v=v; s.n=n\nH=Node(1,Node(2))"],
        ["H.n.v=3"],
        "H.n.v",
    ),
    "autoreload edited module value": (["A=1"], ["%load_ext autoreload\n%autoreload 2", "A=2"], "A"),
    "match inner": (["S={1:'a'}"], ["match S:\n    case {1: x}: S[1]=x*2"], "S"),
    "logger level": (
        ["import logging\nlog=logging.getLogger('pk')\ndef f(): return log.isEnabledFor(10)"],
        ["log.setLevel(10)"],
        "f()",
    ),
    "logger handler": (
        ["import logging\nlog=logging.getLogger('pk')\ndef f(): return len(log.handlers)"],
        ["log.addHandler(logging.NullHandler())"],
        "f()",
    ),
    "root logger level": (
        ["import logging\ndef f(): return logging.getLogger('x').isEnabledFor(20)"],
        ["import logging; logging.getLogger().setLevel(20)"],
        "f()",
    ),
    "tensor hook": (
        [
            "import torch\nT=torch.ones(1,requires_grad=True)\ndef f():\n    T.grad=None\n"
            "    (T*1).sum().backward()\n    return float(T.grad)"
        ],
        ["h=T.register_hook(lambda g: g*2)"],
        "f()",
    ),
    "locale": (
        [
            "import locale\n"
            "def f(): return locale.localeconv()['decimal_point']+str(locale.setlocale(locale.LC_ALL))"
        ],
        ["import locale; locale.setlocale(locale.LC_ALL,'C')"],
        "f()",
    ),
    "threads": (
        ["import torch\ndef f(): return torch.get_num_threads()"],
        ["torch.set_num_threads(torch.get_num_threads()+1)"],
        "f()",
    ),
    "inference mode": (
        ["import torch\ndef f(): return torch.is_grad_enabled()"],
        ["torch.set_grad_enabled(False)"],
        "f()",
    ),
    "default device": (
        ["import torch\ndef f(): return str(torch.ones(1).device)"],
        ["torch.set_default_device('meta')"],
        "f()",
    ),
    "deterministic": (
        ["import torch\ndef f(): return torch.are_deterministic_algorithms_enabled()"],
        ["torch.use_deterministic_algorithms(True)"],
        "f()",
    ),
    "warnings error": (
        [
            "import warnings\ndef f():\n    try: warnings.warn('x')\n"
            "    except UserWarning: return 1\n    return 0"
        ],
        ["import warnings; warnings.simplefilter('error')"],
        "f()",
    ),
    "recursion deep": (
        ["def f(n=4000): return n and f(n-1)"],
        ["import sys; sys.setrecursionlimit(20000)"],
        "f()",
    ),
    "deleted globals": (
        ["A=1", "def f():\n    try: return A\n    except NameError: return 0"],
        ["del A"],
        "f()",
    ),
    "timezone": (
        ["import time\ndef f(): return time.strftime('%H',time.localtime(0))"],
        ["import os,time\nos.environ['TZ']='Asia/Tokyo'; time.tzset()"],
        "f()",
    ),
    "sklearn config": (
        ["import sklearn\ndef f(): return sklearn.get_config()['transform_output']"],
        ["import sklearn; sklearn.set_config(transform_output='pandas')"],
        "f()",
    ),
    "closure poke": (
        [
            "def mk():\n    c={}\n    def f(x=2):\n        if x not in c: c[x]=x*x\n"
            "        return c[x]\n    return f",
            "f=mk()",
        ],
        ["f.__closure__[0].cell_contents[2]=99"],
        "f()",
    ),
    "cached prop appended": (
        [
            "from functools import cached_property\nclass A:\n    @cached_property\n"
            "    def v(self): return [1]\na=A()"
        ],
        ["a.v.append(2)"],
        "a.v",
    ),
    "memo closure stale": (
        [
            "K=1",
            "def mk():\n    c={}\n    def f(x=2):\n        if x not in c: c[x]=x*K\n"
            "        return c[x]\n    return f",
            "f=mk()",
        ],
        ["f()", ("editrun", 0, "K=5")],
        "f()",
    ),
    "cached prop stale": (
        [
            "from functools import cached_property\nK=1",
            "class A:\n    @cached_property\n    def v(self): return K\na=A()",
        ],
        ["a.v", ("editrun", 0, "from functools import cached_property\nK=2")],
        "a.v",
    ),
    "lazy setter": (
        [
            "_m=None\ndef model():\n    global _m\n    if _m is None: _m=1\n    return _m\n"
            "def put(v):\n    global _m\n    _m=v"
        ],
        ["put(5)"],
        "model()",
    ),
    "lazy attr setter": (
        [
            "class A:\n    def __init__(self): self._m=None\n    def m(self):\n"
            "        if self._m is None: self._m=1\n        return self._m\n"
            "    def put(self,v): self._m=v\na=A()"
        ],
        ["a.put(5)"],
        "a.m()",
    ),
    "default set": (["def f(x=None):\n    if x is None: x=1\n    return x"], ["f.__defaults__=(5,)"], "f()"),
    "lazy attr vars": (
        [
            "class A:\n    def __init__(self): self._m=None\n    def m(self):\n"
            "        if self._m is None: self._m=1\n        return self._m\na=A()"
        ],
        ["a.__dict__.update({'_'+'m':4})"],
        "a.m()",
    ),
    "globals asked": (["def f(): return globals().get('STEPS', 3)"], ["STEPS = 50"], "f()"),
    "name error asked": (
        ["def f():\n    try: return FAST\n    except NameError: return 0"],
        ["FAST = 1"],
        "f()",
    ),
    "own module asked": (
        ["import sys\ndef f(): return getattr(sys.modules[__name__], 'OPTION', 0)"],
        ["OPTION = 4"],
        "f()",
    ),
    "row twice": (["row=[0]\nA=[row,row]"], ["A[1]=list(A[1])"], "A[0] is A[1]"),
    "view by another name": (["M=memoryview(bytearray(b'abc'))"], ["m=M\nm[0]=120"], "bytes(M)"),
    "file position": (
        ["import tempfile\nF=tempfile.TemporaryFile('w+')\nF.write('hello')\nF.seek(0)"],
        ["F.read(2)"],
        "F.read()",
    ),
    "singleton attribute": (
        [
            "class C:\n    _i=None\n    def __new__(cls):\n        if cls._i is None:\n"
            "            cls._i=super().__new__(cls)\n            cls._i.lr=1\n        return cls._i"
        ],
        ["C().lr=7"],
        "C().lr",
    ),
    "yaml constructor": (
        ["import yaml"],
        ["yaml.SafeLoader.add_constructor('!x', lambda loader, node: 5)"],
        "yaml.safe_load('!x 3')",
    ),
    "pandas accessor": (
        ["import pandas as pd", "D=pd.DataFrame({'a':[1]})"],
        ["@pd.api.extensions.register_dataframe_accessor('zz')\nclass Z:\n    def __init__(s,d): s.v=3"],
        "D.zz.v",
    ),
    "anomaly detection": (
        ["import torch"],
        ["torch.autograd.set_detect_anomaly(True)"],
        "torch.is_anomaly_enabled()",
    ),
    "strides": (
        ["import torch", "T=torch.zeros(1,2,3,3)\nM=[T]"],
        ["M[0]=T.contiguous(memory_format=torch.channels_last)"],
        "M[0].stride()",
    ),
    "seed not run again": (["import random\nrandom.seed(0)", "W=random.random()"], [("run", 1)], "W"),
    "vararg to kwarg": (["def f(*a): return a"], ["def f(**a): return a"], "f()"),
    "posonly": (
        ["def f(a,/): return a\ndef g():\n    try: return f(a=1)\n    except TypeError: return 0"],
        ["def f(a): return a"],
        "g()",
    ),
    "class hash": (["class A: pass"], ["A.__hash__=lambda s: 5"], "hash(A())==5"),
    "class name": (["class A: pass"], ["A.__name__='B'"], "A.__name__"),
    "subclasshook": (
        ["from abc import ABC\nclass A(ABC): pass"],
        ["A.__subclasshook__=classmethod(lambda c,o: True)"],
        "issubclass(int,A)",
    ),
    "abstract methods emptied": (
        [
            "from abc import ABC,abstractmethod\nclass A(ABC):\n    @abstractmethod\n    def f(s): pass",
            "def mk():\n    try: return bool(A())\n    except TypeError: return 0",
        ],
        ["A.__abstractmethods__=frozenset()"],
        "mk()",
    ),
    "enum map": (
        ["from enum import Enum\nclass E(Enum):\n    A=1\n    B=2"],
        ["E._value2member_map_[1]=E.B"],
        "E(1).name",
    ),
    "yield from": (["def gen():\n    yield from [1,2,3]", "g=gen()\nnext(g)"], ["next(g)"], "next(g)"),
    "one line yields": (
        ["def gen():\n    yield 1; yield 2; yield 3", "g=gen()\nnext(g)"],
        ["next(g)"],
        "next(g)",
    ),
    "qualname f": (["def f(): return 1"], ["f.__qualname__='zz'"], "f.__qualname__"),
    "exception note": (["e=ValueError('a')"], ["e.__cause__=KeyError('x')"], "repr(e.__cause__)"),
    "code of another package": (
        ["import statistics"],
        ["statistics.mean.__code__=(lambda data: 7).__code__"],
        "statistics.mean([1])",
    ),
    "code of an imported function": (
        ["from statistics import mean"],
        ["mean.__code__=(lambda data: 7).__code__"],
        "mean([1])",
    ),
    "default of another package": (
        ["import textwrap"],
        ["textwrap.indent.__defaults__=(len,); textwrap.wrap.__defaults__=(3,)"],
        "textwrap.wrap('a b c d')",
    ),
    "vars of another package": (
        ["import textwrap"],
        ["vars(textwrap)['dedent']=lambda text: 'x'"],
        "textwrap.dedent(' a')",
    ),
    "dict of builtins": (
        [],
        ["import builtins\nbuiltins.__dict__['bin']=lambda x: 7"],
        "bin(1)",
    ),
    "one of three steps": (
        ["A=[1]", "B=[2]"],
        ["x=A+B", "B.append(3)", "y=sum(A)"],
        "A+B",
    ),
    "the first of two steps": (["C={'a':1}"], ["C['a']=2", "D={**C}"], "C"),
    "the second of two steps": (["C={'a':1}"], ["C['a']=1", "C['b']=2"], "C"),
    "changed, undone and changed": (["C={'a':1}"], ["C['a']=2", "C['a']=1", "C['a']=5"], "C"),
    "seed edited and run": (
        ["import torch", "SEED=0", "torch.manual_seed(SEED)", "W=float(torch.rand(1))"],
        [("editrun", 1, "SEED=1")],
        "W",
    ),
    "registered with an older number": (
        ["K=1", "REG={}\ndef register(x): REG[x]=1", "register(K)"],
        [("editrun", 0, "K=5")],
        "sorted(REG)",
    ),
    "as many random numbers as before": (
        ["import random", "K=1", "W=[random.random() for _ in range(K)]"],
        [("editrun", 1, "K=3")],
        "len(W)",
    ),
    "database filled with an older number": (
        [
            "K=1",
            "import sqlite3\nDB=sqlite3.connect(':memory:')\nDB.execute(f'create table t as select {K} as x')",
        ],
        [("editrun", 0, "K=5")],
        "DB.execute('select x from t').fetchone()[0]",
    ),
    "database of another cell": (
        [
            "import sqlite3\ndef make(k):\n    db=sqlite3.connect(':memory:')\n"
            "    db.execute(f'create table t as select {k} as x')\n    return db",
            "DB=make(1)",
        ],
        ["DB=make(7)"],
        "DB.execute('select x from t').fetchone()[0]",
    ),
    "star import of another library": (
        ["from numpy import *", "def f(): return type(sqrt(4)).__name__"],
        ["from math import *"],
        "f()",
    ),
    "star imports in another order": (
        ["from math import *", "from numpy import *", "def f(): return type(sqrt(4)).__name__"],
        [("run", 0)],
        "f()",
    ),
    "star import hides a builtin": (
        ["def f(): return type(sum([1,2])).__name__"],
        ["from numpy import *"],
        "f()",
    ),
    "table of an older enum": (
        ["from enum import Enum\nclass Mode(Enum):\n    A=1", "T={Mode.A:'a'}"],
        [("run", 0)],
        "T.get(Mode.A)",
    ),
    "handlers of an older class": (
        ["class A: pass", "H={A:1}"],
        [("run", 0)],
        "H.get(A)",
    ),
    "set of older classes": (
        ["class A: pass", "H={A}"],
        [("run", 0)],
        "A in H",
    ),
    "patch of another library's class": (
        ["from pathlib import Path", "def f(): return getattr(Path('.'), 'lsx', None) and Path('.').lsx()"],
        ["from fastcore.all import patch\n@patch\ndef lsx(self: Path): return 3"],
        "f()",
    ),
    "registry emptied by its own cell": (
        ["REG={}\ndef register(f): REG[f.__name__]=f; return f", "@register\ndef a(): return 1"],
        [("run", 0)],
        "sorted(REG)",
    ),
    "random list emptied by its own cell": (
        ["import random\nL=[random.random()]", "L.append(1)"],
        [("run", 0)],
        "len(L)",
    ),
    "one list in two names": (
        ["C=['a']", "class S:\n    def __init__(self, c): self.c=c\ns=S(C)"],
        ["C.append('b')"],
        "s.c",
    ),
    "seeded generator in another order": (
        [
            "import numpy as np\nrng=np.random.default_rng(0)",
            "X=float(rng.normal())",
            "Y=float(rng.normal())",
        ],
        [("run", 0), ("run", 2), ("run", 1)],
        "Y",
    ),
    "seed above not run again": (
        ["import torch", "torch.manual_seed(0)", "W=float(torch.rand(1))"],
        [("run", 2)],
        "W",
    ),
    # --- parts of values that belong to the process
    "an item beside a time": (
        ["import time", "OPTS={'run':time.time(),'lr':1}", "OPTS['lr']*=2"],
        [("run", 2)],
        "OPTS['lr']",
    ),
    "a list of random numbers that grows": (
        ["import random", "XS=[random.random()]", "XS.append(1)"],
        [("run", 2)],
        "len(XS)",
    ),
    "an attribute beside a time": (
        ["import time\nclass C: pass", "c=C(); c.t=time.time(); c.lr=1", "c.lr*=2"],
        [("run", 2)],
        "c.lr",
    ),
    "a namespace with a uuid": (
        ["import uuid, types", "C=types.SimpleNamespace(id=uuid.uuid4(), n=1)", "C.n+=1"],
        [("run", 2)],
        "C.n",
    ),
    "a nested item beside a time": (
        ["import time", "OPTS={'meta':{'t':time.time(),'tag':'a'},'lr':1}", "OPTS['meta']['tag']+='b'"],
        [("run", 2)],
        "OPTS['meta']['tag']",
    ),
    "a comment that says notebook": (
        ["# the words of this notebook\nL=[1]", "# of the notebook\nL.append(2)"],
        [("run", 1)],
        "len(L)",
    ),
    "a docstring that says notebook": (
        ["def f():\n    'for the notebook'\n    return L\nL=[1]", "L.append(2)"],
        [("run", 1)],
        "len(f())",
    ),
    "sys.path in the cell of a list": (
        ["import sys\nsys.path.append('..')\nL=[1]", "L.append(2)"],
        [("run", 1)],
        "len(L)",
    ),
    "pydantic: a default edited": (
        ["from pydantic import BaseModel", "class Cfg(BaseModel): lr: float = 0.1", "cfg=Cfg()"],
        [("editrun", 1, "class Cfg(BaseModel): lr: float = 0.7")],
        "cfg.lr",
    ),
    "pydantic: a validator edited": (
        [
            "from pydantic import BaseModel, field_validator\nK=1",
            "class Cfg(BaseModel):\n    lr: float\n    @field_validator('lr')\n    @classmethod\n"
            "    def v(cls, x): return x*K",
            "cfg=Cfg(lr=1)",
        ],
        [("editrun", 0, "from pydantic import BaseModel, field_validator\nK=2")],
        "cfg.lr",
    ),
    "a generation model changed twice": (
        [
            "import torch\nfrom transformers import GPT2Config, GPT2LMHeadModel\ntorch.manual_seed(0)",
            "lm=GPT2LMHeadModel(GPT2Config(vocab_size=11,n_positions=8,n_embd=4,n_layer=1,n_head=1))",
            "with torch.no_grad(): lm.lm_head.weight*=2",
        ],
        [("run", 2)],
        "round(float(lm.lm_head.weight.abs().sum()),4)",
    ),
    "a distribution of scipy": (
        ["from scipy import stats", "D=stats.norm(0,1)", "D.args=(D.args[0]+1,1)"],
        [("run", 2)],
        "float(D.mean())",
    ),
    "a tokenizer that pads": (
        [
            "from tokenizers import Tokenizer, models",
            "t=Tokenizer(models.WordLevel({'a':0,'[PAD]':1},unk_token='a'))",
        ],
        ["t.enable_padding(length=8)"],
        "len(t.encode('a').ids)",
    ),
    # --- names whose giver no source shows
    "pylab": (["def total(): return type(sum([1])).__name__"], ["%pylab agg"], "total()"),
    "a star import not run again after a reload": (
        ["open('hlp.py','a').write('Q=1' if not open('hlp.py').read() else '')", "from hlp import *"],
        ["open('hlp.py','w').write('Q = 22'); import importlib,hlp; importlib.reload(hlp)"],
        "Q",
    ),
    # --- settings made by a call
    "flash attention off": (
        ["import torch", "def asks(): return torch.backends.cuda.flash_sdp_enabled()"],
        ["torch.backends.cuda.enable_flash_sdp(False)"],
        "asks()",
    ),
    "torch.hub's folder": (
        ["import torch", "def asks(): return torch.hub.get_dir()"],
        ["torch.hub.set_dir('elsewhere')"],
        "asks()",
    ),
    "start method spawn": (
        ["import multiprocessing as mp", "def asks(): return mp.get_start_method()"],
        ["mp.set_start_method('spawn', force=True)"],
        "asks()",
    ),
    "a socket's time limit": (
        ["import socket", "def asks(): return socket.getdefaulttimeout()"],
        ["socket.setdefaulttimeout(3)"],
        "asks()",
    ),
    "an option of pandas": (
        ["import pandas as pd", "def asks(): return pd.get_option('compute.use_numexpr')"],
        ["pd.set_option('compute.use_numexpr', False)"],
        "asks()",
    ),
    "attention of timm": (
        ["import timm", "def asks(): return timm.layers.use_fused_attn()"],
        ["timm.layers.set_fused_attn(False)"],
        "asks()",
    ),
    "alias of a clock": (["import time\nclock=time.time"], ["clock=lambda: 1"], "clock()>5"),
    "alias of now": (
        ["import datetime\nnow=datetime.datetime.now"],
        ["_then=datetime.datetime(2020,1,1)\nnow=lambda: _then"],
        "now().year>2020",
    ),
    "mocked clock": (
        ["import time\ndef f(): return time.time()>5"],
        ["time.time=lambda: 1"],
        "f()",
    ),
    "star imports in another order, of math last": (
        ["from numpy import *", "from math import *"],
        [("run", 0)],
        "type(sqrt(2)).__name__",
    ),
    "an exported name that Python has too": (
        ["def open(x): return 1"],
        ["def open(x): return 2"],
        "open(3)",
    ),
    "an exported value that Python has too": (
        ["id = 'base'", "def g(): return id"],
        ["id = 'run-7'"],
        "g()",
    ),
}


SAME = {
    "coins and digits": (
        [
            "import random",
            "COINS=[random.random()<.5 for _ in range(20)]; D={c: random.random()<.5 for c in 'abcdefgh'}\n"
            "T=[(random.randrange(4),random.randrange(4)) for _ in range(10)]",
        ],
        [],
        "len(COINS), len(D), len(T)",
    ),
    "a day, an hour and an id": (
        [
            "import time, uuid",
            "RUN={'day':time.strftime('%Y%m%d'),'at':time.strftime('%H%M%S'),'id':uuid.uuid4(),'n':[1,2]}",
        ],
        [],
        "RUN['n']",
    ),
    "the order of a set": (
        [
            "WORDS={'a','b','c','d'}",
            "VOCAB={w:i for i,w in enumerate(WORDS)}; O={'v':list(WORDS),'n':len(WORDS)}",
        ],
        [],
        "len(VOCAB), O['n']",
    ),
    "pydantic, used": (
        [
            "from pydantic import BaseModel, Field, computed_field, field_validator",
            "class Base(BaseModel):\n    n: int = 1\nclass Cfg(Base):\n    lr: float = Field(0.1, gt=0)\n"
            "    tags: list[str] = Field(default_factory=list)\n    base: Base = Base()\n"
            "    @field_validator('lr')\n    @classmethod\n    def v(cls, x): return x*2\n"
            "    @computed_field\n    @property\n    def z(self) -> int: return self.n",
            "cfg=Cfg()",
        ],
        ["c=Cfg(); c.lr=3; c.model_dump(); Cfg.model_json_schema(); import inspect; inspect.signature(Cfg)"],
        "cfg.lr",
    ),
    "a tokenizer of Transformers, called": (
        [
            "from tokenizers import Tokenizer, models\nfrom transformers import PreTrainedTokenizerFast",
            "t=PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({'a':0,'[PAD]':1},"
            "unk_token='a')),pad_token='[PAD]')",
        ],
        ["t(['a','a a'],padding=True,truncation=True,max_length=8)"],
        "len(t('a')['input_ids'])",
    ),
    "text that a fresh generation model makes": (
        [
            "import torch\nfrom transformers import GPT2Config, GPT2LMHeadModel\ntorch.manual_seed(0)",
            "lm=GPT2LMHeadModel(GPT2Config(vocab_size=11,n_positions=8,n_embd=4,n_layer=1,n_head=1))",
        ],
        ["lm.generate(torch.tensor([[1,2]]), max_new_tokens=2)"],
        "len(list(lm.parameters()))",
    ),
    "numbers drawn from a distribution": (
        ["from scipy import stats\nimport numpy as np", "D=stats.norm(0,1)"],
        ["D.rvs(3); np.random.seed(3)"],
        "float(D.mean())",
    ),
    "files opened in a cell": (
        [
            "def f():\n    with open('f.txt','w') as h: print('x',file=h)\n    return 1",
            "open('g.txt','w').close()",
        ],
        ["open('g.txt','w').close(); f()"],
        "f()",
    ),
    "a pool, a loader and a folder asked for": (
        ["import multiprocessing as mp, torch\ndef f():\n    with mp.Pool(1) as p: return p.map(abs,[1])"],
        ["torch.utils.data.DataLoader([1,2],num_workers=1); f(); mp.get_start_method(); torch.hub.get_dir()"],
        "f()",
    ),
    "thread pool used": (
        ["from concurrent.futures import ThreadPoolExecutor", "P=ThreadPoolExecutor(2)"],
        ["list(P.map(str,[1,2]))"],
        "list(P.map(str,[3]))",
    ),
    "time": (["import time\nT=time.time()"], [], "1"),
    "uuid": (["import uuid\nU=uuid.uuid4()"], [], "1"),
    "set order": (["L=list({'a','b','c','d'})"], [], "1"),
    "set order dict": (["D={k:i for i,k in enumerate({'aa','bb','cc'})}"], [], "1"),
    "hash": (["H=hash('abc')"], [], "1"),
    "id": (["I=id(object())"], [], "1"),
    "object": (["O=object()"], [], "1"),
    "lock": (["import threading\nL=threading.Lock()"], [], "1"),
    "logger": (["import logging\nlog=logging.getLogger(__name__)"], [], "1"),
    "path cwd": (["from pathlib import Path\nP=Path.cwd()"], [], "1"),
    "tempdir": (["import tempfile\nT=tempfile.mkdtemp()"], [], "1"),
    "in notebook": (["IN='get_ipython' in globals()"], [], "1"),
    "in notebook 2": (["try:\n    get_ipython()\n    NB=True\nexcept NameError:\n    NB=False"], [], "1"),
    "in notebook 3": (["def nb():\n    import sys\n    return 'ipykernel' in sys.modules\nNB=nb()"], [], "1"),
    "tqdm auto": (["from tqdm.auto import tqdm"], [], "1"),
    "random np": (["import numpy as np\nR=np.random.rand(3)"], [], "1"),
    "random torch": (["import torch\nR=torch.rand(3)"], [], "1"),
    "generator seeded used": (["import numpy as np\nG=np.random.default_rng()"], [], "1"),
    "torch layer unseeded": (["import torch\nN=torch.nn.Linear(3,3)"], [], "1"),
    "cuda device": (["import torch\ndev='cuda' if torch.cuda.is_available() else 'cpu'"], [], "1"),
    "main guard": (["def f(): return 1\nif __name__=='__main__': MAIN=1"], [], "f()"),
    "__file__": (["try:\n    HERE=__file__\nexcept NameError:\n    HERE='x'"], [], "1"),
    "counter by function": (["N=0\ndef f():\n    global N\n    N+=1\n    return 1"], ["f(); f()"], "1"),
    "memo": (["M={}\ndef f(x=2):\n    if x not in M: M[x]=x*x\n    return M[x]"], ["f(3)"], "f(2)"),
    "lru": (["import functools\n@functools.lru_cache\ndef f(x=2): return x"], ["f(3)"], "f()"),
    "cached property": (
        [
            "from functools import cached_property\nclass A:\n    @cached_property\n"
            "    def v(self): return 1",
            "a=A()",
        ],
        ["a.v"],
        "a.v",
    ),
    "comment edit": (["A=1"], [("edit", 0, "A=1  # why")], "A"),
    "doc edit": (
        ["def f():\n    'doc'\n    return 1"],
        [("edit", 0, "def f():\n    'other doc'\n    return 1")],
        "f()",
    ),
    "format edit": (["D={'a':1,'b':2}"], [("edit", 0, "D = {\n    'a': 1,\n    'b': 2,\n}")], "D"),
    "rename local": (["def f():\n    x=1\n    return x"], [("run", 0)], "f()"),
    "type hint edit": (["def f(x=1): return x"], [("edit", 0, "def f(x: int = 1) -> int: return x")], "f()"),
    "alias import": (["import torch.nn as nn"], ["from torch import nn"], "nn.__name__"),
    "torch nn": (["from torch import nn"], ["import torch.nn as nn"], "nn.__name__"),
    "np alias": (["import numpy as np"], ["import numpy as np"], "np.__name__"),
    "plt": (
        ["import matplotlib.pyplot as plt"],
        ["import matplotlib.pyplot as plt\nplt.figure()\nplt.close('all')"],
        "1",
    ),
    "test private helper": (["def _h(x): return x"], ["assert _h(1)==1\ndef _h2(): return _h(2)"], "_h(1)"),
    "test rebinding helper same": (["def _h(x): return x"], ["def _h(x): return x"], "_h(1)"),
    "branch not taken": (["A=1"], ["if False: A=2"], "A"),
    "branch not taken func": (["A=1"], ["def never():\n    global A\n    A=2"], "A"),
    "swap twice": (["a,b=1,2"], ["a,b=b,a", "a,b=b,a"], "(a,b)"),
    "sorted again": (["L=[1,2,3]"], ["L.reverse(); L.sort()"], "L"),
    "loop variable": (["for i in range(3): pass"], ["for i in range(3): pass"], "i"),
    "try scratch": (["A=1"], ["try: A\nexcept NameError: pass"], "A"),
    "with patch undone": (
        ["class M:\n    def f(self): return 1"],
        ["from unittest.mock import patch\nwith patch.object(M,'f',lambda s: 2): M().f()"],
        "M().f()",
    ),
    "monkey undone": (["A={'k':1}"], ["from unittest.mock import patch\nwith patch.dict(A,k=5): pass"], "A"),
    "dataclass again": (
        ["from dataclasses import dataclass\n@dataclass\nclass C: x:int=1", "c=C()"],
        [("run", 0)],
        "c.x",
    ),
    "class rerun instance": (["class A:\n    def f(self): return 1", "a=A()"], [("run", 0)], "a.f()"),
    "namedtuple": (
        ["from typing import NamedTuple\nclass P(NamedTuple):\n    x:int=1"],
        [("run", 0)],
        "P().x",
    ),
    "protocol": (
        ["from typing import Protocol\nclass P(Protocol):\n    def f(self): ..."],
        [("run", 0)],
        "1",
    ),
    "typevar": (
        ["from typing import TypeVar,Generic\nT=TypeVar('T')\nclass G(Generic[T]): pass"],
        [("run", 0)],
        "1",
    ),
    "fastcore patch": (
        ["from fastcore.all import patch\nclass A: pass", "@patch\ndef f(self:A): return 1"],
        [("run", 1)],
        "A().f()",
    ),
    "fastcore store_attr": (
        [
            "from fastcore.all import store_attr\nclass A:\n    def __init__(self,a=1,b=2): store_attr()",
            "a=A()",
        ],
        [],
        "a.a",
    ),
    "property class": (["class A:\n    @property\n    def x(self): return 1"], [("run", 0)], "A().x"),
    "abstract": (
        [
            "from abc import ABC,abstractmethod\nclass A(ABC):\n    @abstractmethod\n    def f(self): ...\n"
            "class B(A):\n    def f(self): return 1"
        ],
        ["B().f(); isinstance(B(),A)"],
        "B().f()",
    ),
    "weakset": (
        ["import weakref\nclass A:\n    alive=weakref.WeakSet()\n    def __init__(self): A.alive.add(self)"],
        ["a=A()"],
        "1",
    ),
    "subclass elsewhere": (["class A: pass"], ["class Z(A): pass"], "1"),
    "registry by init_subclass": (
        ["class A:\n    reg={}\n    def __init_subclass__(cls): A.reg[cls.__name__]=cls", "class B(A): pass"],
        [("run", 1)],
        "list(A.reg)",
    ),
    "warnings": (["import warnings\nwarnings.filterwarnings('ignore')"], [("run", 0)], "1"),
    "print": (["print('hi')\nA=1"], [("run", 0)], "A"),
    "plot settings scratch": (
        ["A=1"],
        ["import matplotlib.pyplot as plt\nplt.rcParams['figure.figsize']=(3,3)"],
        "A",
    ),
    "pandas options scratch": (["import pandas as pd\nA=1"], ["pd.options.display.max_rows=5"], "A"),
    "torch print scratch": (["import torch\nA=1"], ["torch.set_printoptions(precision=3)"], "A"),
    "np print scratch": (["import numpy as np\nA=1"], ["np.set_printoptions(precision=3)"], "A"),
    "autoreload": (["A=1"], ["%load_ext autoreload\n%autoreload 2"], "A"),
    "timeit": (["def f(): return 1"], ["%timeit -n1 -r1 f()"], "f()"),
    "star import after use": (["from math import sqrt\nA=sqrt(4)"], ["from math import *"], "A"),
    "display": (["A=1"], ["display(A)"], "A"),
    "model seeded": (["import torch\ntorch.manual_seed(0)\nN=torch.nn.Linear(2,2)"], [], "1"),
    "tensor made": (["import torch\nT=torch.arange(4.)"], ["T.sum(); T*2"], "T.tolist()"),
    "tensor grad graph": (["import torch\nT=torch.ones(1,requires_grad=True)"], ["(T*2).sum()"], "1"),
    "dataframe read": (
        ["import pandas as pd\nF=pd.DataFrame({'a':[1,2]})"],
        ["F.describe(); F.a.mean()"],
        "F.a.tolist()",
    ),
    "sklearn dataset": (["from sklearn.datasets import load_digits\nD=load_digits()"], [], "1"),
    "image": (["from PIL import Image\nI=Image.new('L',(2,2))"], [], "1"),
    "compiled regex": (["import re\nR=re.compile('a+')"], ["R.match('aa')"], "R.pattern"),
    "generator unused": (["G=(i for i in range(3))"], [], "1"),
    "open file": (["import sys\nOUT=sys.stdout"], [], "1"),
    "partial": (["from functools import partial\np=partial(int,base=2)"], ["p('1')"], "p('11')"),
    "iterator unused": (["import itertools\nC=itertools.cycle([1,2])"], [], "next(C)"),
    "socket": (["import socket\nHOST=socket.gethostname()"], [], "HOST"),
    "environ read": (["import os\nU=os.environ.get('HOME')"], [], "U"),
    "async def": (["import asyncio\nasync def f(): return 1"], ["await f()"], "1"),
    "sys path": (["import sys\nP=list(sys.path)"], [], "1"),
    "version": (["import torch\nV=torch.__version__"], [], "V"),
    "ref to module function": (["import math\nFNS={'sqrt':math.sqrt}"], ["FNS['sqrt'](4)"], "FNS['sqrt'](4)"),
    "deep class tree": (["class A: pass\nclass B(A): pass\nclass C(B): x=1"], [("run", 0)], "C.x"),
    "class with own instance": (["class A: pass\nA.default=A()"], [("run", 0)], "1"),
    "mutual functions": (
        ["def f(n=3): return 0 if n==0 else g(n-1)\ndef g(n): return f(n)"],
        [("run", 0)],
        "f()",
    ),
    "string big": (["T='x'*100000"], [], "len(T)"),
    "run all twice": (["A=1", "B=[A]", "def f(): return B"], [("run", 0), ("run", 1), ("run", 2)], "f()"),
    "lru used": (
        [
            "import functools\n@functools.lru_cache(maxsize=None)\n"
            "def f(n=5): return n if n<2 else f(n-1)+f(n-2)"
        ],
        ["f(10)"],
        "f()",
    ),
    "cache used": (["from functools import cache\n@cache\ndef load(): return [1,2]"], ["load()"], "load()"),
    "method lru used": (
        ["import functools\nclass A:\n    @functools.lru_cache\n    def f(self,x=1): return x\na=A()"],
        ["a.f(2)"],
        "a.f()",
    ),
    "memo looked up first": (
        ["M={}\ndef f(x=2):\n    if x in M: return M[x]\n    M[x]=x*x\n    return M[x]"],
        ["f(3)"],
        "f(2)",
    ),
    "memo get": (
        ["_cache={}\ndef f(x=2):\n    v=_cache.get(x)\n    if v is None: v=_cache[x]=x+1\n    return v"],
        ["f(3)"],
        "f(2)",
    ),
    "memo try": (
        ["M={}\ndef f(x=2):\n    try: return M[x]\n    except KeyError: M[x]=x\n    return x"],
        ["f(3)"],
        "f(2)",
    ),
    "lazy global": (
        [
            "_model=None\ndef model():\n    global _model\n    if _model is None: _model=[1,2]\n"
            "    return _model"
        ],
        ["model()"],
        "model()",
    ),
    "call counter unread": (
        ["CALLS=0\ndef f():\n    global CALLS\n    CALLS+=1\n    return 1"],
        ["f(); f()"],
        "f()",
    ),
    "env for display": (["A=1"], ["import os\nos.environ['TOKENIZERS_PARALLELISM']='false'"], "A"),
    "env cuda": (["import torch\nA=1"], ["import os\nos.environ['CUDA_VISIBLE_DEVICES']=''"], "A"),
    "logging config": (
        ["import logging\nlog=logging.getLogger(__name__)\ndef f(): log.info('x'); return 1"],
        ["import logging\nlogging.basicConfig(level=logging.INFO)\nf()"],
        "f()",
    ),
    "seed": (
        ["import random, numpy as np\ndef f(): return 1"],
        ["random.seed(0); np.random.seed(0); np.random.rand()"],
        "f()",
    ),
    "torch seed": (["import torch\ndef f(): return 1"], ["torch.manual_seed(1); torch.rand(2)"], "f()"),
    "figure": (
        ["import matplotlib.pyplot as plt\ndef draw(): return plt.figure()"],
        ["%matplotlib inline\nplt.style.use('ggplot')\nfig, ax = plt.subplots(); plt.close('all')"],
        "1",
    ),
    "timeit magic": (["import numpy as np\nW=np.ones(3)"], ["%%timeit -n1 -r1\nW.sum()"], "W.tolist()"),
    "copy changed": (["D={'a':[1]}"], ["import copy\nE=copy.deepcopy(D); E['a'].append(2)"], "D"),
    "model trained outside": (
        ["import torch\ndef make():\n    torch.manual_seed(0)\n    return torch.nn.Linear(1,1)"],
        ["m=make()\no=torch.optim.SGD(m.parameters(),lr=.1)\nm(torch.ones(1)).backward(); o.step()"],
        "float(make().weight)",
    ),
    "dataset iter": (
        ["DATA=list(range(4))\ndef batches():\n    for i in range(0,4,2): yield DATA[i:i+2]"],
        ["b=batches(); next(b)"],
        "list(batches())",
    ),
    "abc subclass scratch": (
        ["from abc import ABC,abstractmethod\nclass B(ABC):\n    @abstractmethod\n    def f(self): ..."],
        ["class T(B):\n    def f(self): return 2\nT().f(); isinstance(3,B); issubclass(T,B)"],
        "1",
    ),
    "mock patch block": (
        ["import statistics\ndef f(): return statistics.mean([1,3])"],
        ["from unittest.mock import patch\nwith patch('statistics.mean', lambda x: 9): f()"],
        "f()",
    ),
    "run edited equal": (["def f(): return 1"], [("editrun", 0, "def f():\n    # one\n    return 1")], "f()"),
    "rerun all out of order": (
        ["A=1", "B=2", "def f(): return A+B"],
        [("run", 2), ("run", 0), ("run", 1)],
        "f()",
    ),
    "edit and undo": (["A=1", "B=A"], [("editrun", 0, "A=2"), ("editrun", 0, "A=1")], "B"),
    "out history": (["A=[1]"], ["A", "_", "Out"], "A"),
    "await scratch": (
        ["import asyncio\nasync def f(): return 1"],
        ["x = await f()\nawait asyncio.sleep(0)"],
        "1",
    ),
    "run magic file": (["A=1"], ["open('_q.py','w').write('ZZ=5')", "%run _q.py"], "A"),
    "writefile": (["A=1"], ["%%writefile _w.py\nx=1"], "A"),
    "bash": (["A=1"], ["%%bash\necho hi", "!echo $A"], "A"),
    "capture out": (["A=1"], ["%%capture out\nprint(A)", "out.show()"], "A"),
    "pandas display": (
        ["import pandas as pd\nF=pd.DataFrame({'a':[1,2]})"],
        [
            "pd.set_option('display.max_rows',5)\nF.head()",
            "F.a.plot if 0 else F.describe()",
            "F.sort_values('a'); F.assign(b=1); F.query('a>1'); F.groupby('a').size()",
        ],
        "F.a.tolist()",
    ),
    "pandas cached column": (
        ["import pandas as pd\nF=pd.DataFrame({'a':[1,2],'b':[3.,4.]})"],
        ["F['a']; F.index; F.loc[0]; F.values; F.T; F.iloc[0]"],
        "F.a.tolist()",
    ),
    "pandas index engine": (
        ["import pandas as pd\nS=pd.Series([1,2],index=['x','y'])"],
        ["S['x']; S.index.get_loc('y'); S.index.is_unique; S.is_monotonic_increasing"],
        "S.tolist()",
    ),
    "numpy read": (
        ["import numpy as np\nW=np.eye(3)"],
        ["np.linalg.inv(W); W.T; W.ravel(); W.sum(); W[W>0]; np.save('_w.npy',W)"],
        "W.tolist()",
    ),
    "sklearn predict": (
        ["from sklearn.linear_model import LinearRegression\nM=LinearRegression().fit([[0],[1]],[0,1])"],
        ["M.predict([[2]]); M.score([[0],[1]],[0,1])"],
        "float(M.coef_[0])",
    ),
    "regex used": (["import re\nR=re.compile('a')"], ["R.sub('b','aaa'); R.findall('a')"], "R.pattern"),
    "path used": (
        ["from pathlib import Path\nP=Path('data')"],
        ["P.exists(); P.name; P/'x'; str(P); hash(P); P.parts; P.parent; P.suffix"],
        "str(P)",
    ),
    "enum used": (
        [
            "from enum import Enum, Flag, auto\nclass E(Enum):\n    A=auto()\n    B=auto()\n"
            "class G(Flag):\n    X=1\n    Y=2"
        ],
        ["E('zz') if 0 else E(1); E['A']; list(E); G.X|G.Y; G(3); repr(G(3))"],
        "E.A.value",
    ),
    "dataclass used": (
        [
            "from dataclasses import dataclass, field, asdict, replace\n@dataclass(order=True)\n"
            "class C:\n    x:int=1\n    l:list=field(default_factory=list)\nc=C()"
        ],
        ["asdict(c); replace(c,x=2); c==C(); repr(c); sorted([c,C(2)])"],
        "c.x",
    ),
    "generic used": (
        [
            "from typing import Generic, TypeVar\nT=TypeVar('T')\nclass Box(Generic[T]):\n"
            "    def __init__(self,v): self.v=v"
        ],
        ["Box[int](3); Box[str]; Box(1).v"],
        "Box(1).v",
    ),
    "singledispatch used": (
        [
            "from functools import singledispatch\n@singledispatch\ndef f(x=1): return 1\n@f.register\n"
            "def _(x:str): return 2"
        ],
        ["f('a'); f(3); f([])"],
        "f(1)",
    ),
    "contextmanager used": (
        ["from contextlib import contextmanager\n@contextmanager\ndef cm():\n    yield 1"],
        ["with cm() as x: pass"],
        "1",
    ),
    "thread pool": (
        [
            "from concurrent.futures import ThreadPoolExecutor\n"
            "def f(): return list(ThreadPoolExecutor(1).map(abs,[1]))"
        ],
        ["f()"],
        "f()",
    ),
    "fastcore L": (
        ["from fastcore.all import L, patch\nitems=L(1,2,3)"],
        ["items.map(lambda x:x+1); items.sum(); items[0]"],
        "list(items)",
    ),
    "warn once": (["import warnings\ndef f():\n    warnings.warn('x')\n    return 1"], ["f(); f()"], "f()"),
    "pbar": (["from tqdm.auto import tqdm\ndef f(): return [x for x in tqdm(range(3))]"], ["f()"], "f()"),
    "random string": (["import secrets\nRUN=secrets.token_hex(4)"], [], "1"),
    "pid host": (["import os, platform\nWHO=(os.getpid(), platform.node())"], [], "1"),
    "batchnorm eval": (
        ["import torch\ntorch.manual_seed(0)\nB=torch.nn.BatchNorm1d(1)"],
        ["B.eval(); B(torch.ones(2,1)); B.train()"],
        "float(B.running_mean)",
    ),
    "optimizer built": (
        ["import torch\ndef opt(m): return torch.optim.Adam(m.parameters())"],
        ["m=torch.nn.Linear(1,1); opt(m).step()"],
        "1",
    ),
    "dataloader": (
        [
            "import torch\nfrom torch.utils.data import DataLoader, TensorDataset\n"
            "ds=TensorDataset(torch.arange(4.))\ndl=DataLoader(ds,2)"
        ],
        ["next(iter(dl)); len(dl)"],
        "len(dl)",
    ),
    "global in comprehension": (["A=[1,2]"], ["[A for A in [1]]"], "A"),
    "main block": (["def main(): return 1\nif __name__=='__main__':\n    main()"], [], "main()"),
    "notebook check in func": (
        [
            "def in_nb():\n    try: return bool(get_ipython())\n    except NameError: return False\n"
            "from tqdm import tqdm"
        ],
        ["in_nb()"],
        "1",
    ),
    "type checking import": (
        [
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING: import torch\n"
            "def f(x:'torch.Tensor'=None): return 1"
        ],
        ["f()"],
        "f()",
    ),
    "future annotations": (
        ["from __future__ import annotations\ndef f(x: Zork=1) -> Zork: return x"],
        ["f()"],
        "f()",
    ),
    "magic autoreload used": (
        ["import json"],
        ["%load_ext autoreload\n%autoreload 2", "json.dumps(1)"],
        "json.dumps(1)",
    ),
    "merge cells": (["A=1\nB=2", "C=A+B"], [("edit", 0, "A=1\nB=2\nC=A+B"), ("del", 1)], "C"),
    "split cells": (["A=1\nB=A+1"], [("edit", 0, "A=1"), ("insert", 1, "B=A+1")], "B"),
    "moved cells": (["A=1", "def f(): return A"], [("move", 1, 0)], "f()"),
    "closure memo": (
        [
            "def mk():\n    c={}\n    def f(x=2):\n        if x not in c: c[x]=x*x\n"
            "        return c[x]\n    return f",
            "f=mk()",
        ],
        ["f(3)"],
        "f()",
    ),
    "memo decorator": (
        [
            "import functools\ndef memo(fn):\n    cache={}\n    @functools.wraps(fn)\n"
            "    def wrap(*a):\n        if a not in cache: cache[a]=fn(*a)\n"
            "        return cache[a]\n    return wrap",
            "@memo\ndef sq(x=2): return x*x",
        ],
        ["sq(3)"],
        "sq()",
    ),
    "memo param": (
        ["def f(x=2,_m={}):\n    if x in _m: return _m[x]\n    _m[x]=x\n    return x"],
        ["f(3)"],
        "f()",
    ),
    "memo attr": (
        ["def f(x=2):\n    if x not in f.cache: f.cache[x]=x\n    return f.cache[x]\nf.cache={}"],
        ["f(3)"],
        "f()",
    ),
    "memo self": (
        [
            "class A:\n    def __init__(self): self._c={}\n    def g(self,x=1):\n"
            "        if x not in self._c: self._c[x]=x\n        return self._c[x]\na=A()"
        ],
        ["a.g(3)"],
        "a.g()",
    ),
    "lazy self": (
        [
            "class A:\n    def __init__(self): self._m=None\n    def m(self):\n"
            "        if self._m is None: self._m=[1]\n        return self._m\na=A()"
        ],
        ["a.m()"],
        "a.m()",
    ),
    "class memo": (
        [
            "class A:\n    _c={}\n    def g(self,x=1):\n        if x not in A._c: A._c[x]=x\n"
            "        return A._c[x]"
        ],
        ["A().g(3)"],
        "A().g()",
    ),
    "lazy class singleton": (
        [
            "class A:\n    _one=None\n    @classmethod\n    def get(cls):\n"
            "        if cls._one is None: cls._one=cls()\n        return cls._one\n    v=3"
        ],
        ["A.get()"],
        "A.get().v",
    ),
    "cached prop list": (
        [
            "from functools import cached_property\nclass A:\n    @cached_property\n"
            "    def v(self): return [1,2]\na=A()"
        ],
        ["a.v"],
        "a.v",
    ),
    "timed wrapper": (
        [
            "import time\ndef timed(f):\n    def inner(*a):\n        t=time.time()\n"
            "        try: return f(*a)\n        finally: inner.last=time.time()-t\n"
            "    inner.last=0.\n    return inner",
            "@timed\ndef g(): return 1",
        ],
        ["g()"],
        "g()",
    ),
    "calls wrapper shown": (
        [
            "def count(f):\n    def inner(*a):\n        inner.calls+=1; inner.last=a\n        return f(*a)\n"
            "    inner.calls=0\n    return inner",
            "@count\ndef g(x): return x",
        ],
        ["g(1); g.calls\nprint(g.last)"],
        "g(1)",
    ),
    "function's own cache shown": (
        ["def f(x):\n    if x not in f.kept: f.kept[x]=x*2\n    return f.kept[x]\nf.kept={}"],
        ["f(1); print(f.kept)"],
        "f(2)",
    ),
    "class counter unread": (
        ["class A:\n    made=0\n    def __init__(self):\n        A.made+=1\n        self.k=1"],
        ["A(), A()", "A.made"],
        "A().k",
    ),
    "root logger level beside basicConfig": (
        ["import logging\ndef setup(level='INFO'): return logging.basicConfig(level=level)"],
        ["logging.getLogger().setLevel('ERROR')"],
        "1",
    ),
    "autocast entered": (
        ["import torch\nAMP=torch.autocast('cpu')\ndef f():\n    with AMP: return 1"],
        ["with AMP: torch.ones(2)"],
        "f()",
    ),
    "calls wrapper": (
        [
            "def count(f):\n    def inner(*a):\n        inner.calls+=1\n        return f(*a)\n"
            "    inner.calls=0\n    return inner",
            "@count\ndef g(): return 1",
        ],
        ["g()"],
        "g()",
    ),
    "logger debug": (
        ["import logging\nlog=logging.getLogger('pk')\ndef f():\n    log.debug('x')\n    return 1"],
        ["log.setLevel(10); log.addHandler(logging.StreamHandler())"],
        "f()",
    ),
    "nested cached": (
        [
            "from functools import cached_property\nclass A:\n    @cached_property\n"
            "    def v(self): return [1,2]\nclass B:\n    def __init__(self): self.a=A()\nb=B()"
        ],
        ["b.a.v"],
        "b.a.v",
    ),
    "del loop var": (["for i in range(3): pass"], ["del i"], "1"),
    "hook in other": (
        ["import torch\nN=torch.nn.Identity()\nN.register_forward_hook(lambda m,a,o: o)"],
        ["M=torch.nn.Identity(); M.register_forward_hook(lambda m,a,o: o)", ("run", 0)],
        "1",
    ),
    "parents and two names": (
        [
            "class N:\n    def __init__(self,p=None):\n        self.p,self.kids=p,[]\n"
            "        if p: p.kids.append(self)",
            "root=N()\nleaf=N(root)\nmid=N(root)\nkids=root.kids",
        ],
        ["len(leaf.p.kids)"],
        "len(kids)",
    ),
    "cached views of a library": (
        ["import networkx as nx\nG=nx.path_graph(4)"],
        ["G.nodes; G.edges; G.adj"],
        "len(G)",
    ),
    "flags of a library": (
        ["import numpy as np, scipy.sparse as sp\nS=sp.csr_matrix(np.eye(3))"],
        ["S.has_sorted_indices; S.has_canonical_format"],
        "S.nnz",
    ),
    "index of dates read": (
        ["import pandas as pd\nt=pd.date_range('2020',periods=3)"],
        ["t.month; pd.Series(range(3),t).resample('D').sum()"],
        "len(t)",
    ),
    "flag inverted": (["from enum import Flag\nclass P(Flag):\n    R=1\n    W=2"], ["~P.R"], "P.R.value"),
    "interact": (
        ["def area(r): return r*r"],
        ["from ipywidgets import interact\ninteract(area,r=(0,3))"],
        "area(2)",
    ),
    "loop variable set again": (
        ["N=0\nfor w in 'abc':\n    N+=ord(w)"],
        ["for w in 'xyz': print(w)"],
        "N",
    ),
    "figure and axes": (
        ["import matplotlib\nmatplotlib.use('Agg')\nimport matplotlib.pyplot as plt\nfig,ax=plt.subplots()"],
        [],
        "1",
    ),
    "log handler": (["import logging\nh=logging.StreamHandler()"], [("run", 0)], "1"),
    "singledispatch called": (
        [
            "from functools import singledispatch\n@singledispatch\ndef f(x): return 1\n"
            "@f.register\ndef _(x:int): return 2"
        ],
        ["f('a'); f(1)"],
        "f(1)",
    ),
    "bound by exec": (["exec('ZZ=3')", "def f(): return ZZ"], [], "f()"),
    "joblib memory": (
        ["import joblib\nmem=joblib.Memory('kept',verbose=0)\n@mem.cache\ndef f(x): return x*2"],
        ["f(3)"],
        "f(2)",
    ),
    "a layer set again": (
        ["import torch", "N=torch.nn.Linear(1,1)", "N.head=torch.nn.Linear(1,2)"],
        [("run", 2)],
        "N.head.out_features",
    ),
    "random data drawn again": (
        ["import random", "W=[random.random()]", "Y=[w*2 for w in W]"],
        [("run", 1)],
        "len(Y)",
    ),
    "random data, and a number tried": (
        ["import random", "K=2", "W=[random.random() for _ in range(K)]"],
        ["K=5", "K=2"],
        "len(W)",
    ),
    "a cell that prints, read before another number came back": (
        ["K=2", "def f(): return K", "print(f())"],
        ["K=3; f()", ("run", 2), "K=2"],
        "f()",
    ),
    "star import run again": (
        ["from numpy.random import *", "def pick(): return type(choice([1,2])).__name__"],
        ["from random import choice", "del choice", ("run", 0)],
        "pick()",
    ),
    "class run again": (
        ["class A: pass", "a=A()", "def f(): return a.__class__.__name__"],
        [("run", 0)],
        "f()",
    ),
    "enum and its table run again": (
        ["from enum import Enum\nclass Mode(Enum):\n    A=1", "T={Mode.A:'a'}"],
        [("run", 0), ("run", 1)],
        "T.get(Mode.A)",
    ),
    "a helper added to another class": (
        ["import pandas as pd"],
        ["pd.DataFrame.shown = lambda self: print(self)\npd.DataFrame({'a': [1]}).shown()"],
        "len(pd.DataFrame({'a':[1]}))",
    ),
    "data shuffled in place": (
        ["import random\nL=list(range(5))", "random.shuffle(L)"],
        [],
        "len(L)",
    ),
    "data shuffled again": (
        ["import random\nL=list(range(5))", "random.shuffle(L)"],
        [("run", 1)],
        "len(L)",
    ),
    "patch of another package, and a word for docstrings": (
        [
            "from pathlib import Path\nfrom fastcore.basics import patch",
            "@patch\ndef twice(self: Path): return 2",
            "def show(f): return f.__doc__",
        ],
        [],
        "Path().twice()",
    ),
    "attribute of another package, and a word for loggers": (
        [
            "import operator, logging",
            "def own_in(a, b): return a in b\noperator.in_ = own_in",
            "def level(logger): return logger.level",
        ],
        [],
        "operator.in_(1, [1])",
    ),
    "local that has the name of a star import": (
        ["from operator import *", "def f():\n    mod = 3  # mod\n    return mod"],
        ["mod = 5"],
        "f()",
    ),
    "attribute that has the name of a star import": (
        ["from operator import *", "def f():\n    s = set()\n    s.add(1)\n    return s"],
        ["def add(a, b): return 7"],
        "f()",
    ),
    "Python's own name from a star import, as a local": (
        ["from operator import *", "def f(abs=3): return abs"],
        ["def abs(x): return 7"],
        "f()",
    ),
    "in_notebook of another package": (
        ["import fastcore.all as fc\ndef f(): return 1 if fc.IN_NOTEBOOK else 1"],
        [],
        "f()",
    ),
    "in_notebook by a star import, twice": (
        ["from fastcore.imports import *\ndef f(): return 1 if IN_NOTEBOOK else 1"],
        ["from fastcore.imports import *"],
        "f()",
    ),
    "class of IPython's": (
        ["from IPython.core.displayhook import DisplayHook as Hook\nclass Quiet(Hook):\n    quiet = True"],
        [],
        "Quiet.__name__",
    ),
    "run's name by the minute": (["import time\nRUN = 'run-' + time.strftime('%Y%m%d-%H%M')"], [], "1"),
    "run's name by the day": (["from datetime import datetime\nRUN = f'{datetime.now():%Y%m%d}'"], [], "1"),
    "run's name by date": (["from datetime import date\nRUN = date.today().isoformat()"], [], "1"),
    "hash in few parts": (["FOLD = hash('file.txt') % 2\nPART = hash('other.txt') % 2"], [], "1"),
    "decimal computed": (
        ["from decimal import Decimal\ndef f(): return str(Decimal(1) / 3)"],
        ["f()"],
        "f()",
    ),
    "colormap used": (
        ["import matplotlib\nC = matplotlib.colormaps['viridis']"],
        ["C(0.5)"],
        "C(0.25)",
    ),
    "colormap made and used": (
        ["from matplotlib.colors import ListedColormap\nC = ListedColormap(['red', 'green'])"],
        ["C(0.5)"],
        "C(0.25)",
    ),
    "data module looked at": (
        [
            "import pytorch_lightning as pl\nclass Data(pl.LightningDataModule):\n"
            "    def setup(self, stage): self.rows = [1, 2]\n    def size(self): return len(self.rows)",
            "dm = Data()\ndef f():\n    dm.setup('fit')\n    return dm.size()",
        ],
        ["dm.setup('fit')\ndm.rows[0]"],
        "f()",
    ),
    "private helper used again": (
        ["def _f(x): return x", "A = _f(1)"],
        ["def _f(x): return 2"],
        "A",
    ),
    "namespace kept": (["_g = globals()\ndef f(): return _g['K']", "K = 3"], ["x = 1"], "f()"),
    "namespace in a list": (["SPACES = [globals()]\ndef f(): return SPACES[0]['K']", "K = 3"], [], "f()"),
    "memo in a default argument": (
        ["def f(x, memo={}):\n    if x not in memo: memo[x] = x * 2\n    return memo[x]"],
        ["f(3)"],
        "f(2)",
    ),
    "aliases of clocks": (
        [
            "import datetime, time\nclock, now = time.time, datetime.datetime.now\nclass Day(datetime.date): pass"
        ],
        [],
        "1",
    ),
    "get_ipython imported by a cell": (
        ["def f():\n    if 'get_ipython' in globals() and get_ipython(): return 1"],
        ["from IPython.core.getipython import get_ipython"],
        "f()",
    ),
}
WARN = {  # what the job lacks is only what a cell that is not exported registered, or is read by nothing launched
    "singledispatch": (
        ["from functools import singledispatch\n@singledispatch\ndef f(x): return 1"],
        ["@f.register\ndef _(x:int): return 2"],
        "f(3)",
    ),
    "register by decorator call": (
        ["REG={}\ndef register(f):\n    REG[f.__name__]=f\n    return f", "@register\ndef a(): return 1"],
        ["@register\ndef b(): return 2"],
        "sorted(REG)",
    ),
    "init_subclass registry": (
        ["class A:\n    reg={}\n    def __init_subclass__(cls): A.reg[cls.__name__]=cls"],
        ["class B(A): pass"],
        "sorted(A.reg)",
    ),
    "dispatcher's example": (
        [
            "from functools import singledispatch\n@singledispatch\ndef show(x): return 1",
            "@show.register\ndef _(x: int): return 2",
        ],
        ["@show.register\ndef _(x: str): return 3"],
        "show(3)",
    ),
    "value that the launch does not reach": (
        ["K = 1\ndef g(): return K", "def f(): return 3"],
        ["K = 2"],
        "f()",
    ),
    "patched method whose name a cell uses": (
        [
            "import inspect\ndef patch(f): setattr(next(iter(f.__annotations__.values())), f.__name__, f)",
            "class App: pass\n@patch\ndef ws(self: App): return getattr(inspect.currentframe(), 'a', 1)",
        ],
        ["ws = 5"],
        "App().ws()",
    ),
}
COURSE = {
    "sklearn": [
        "# Handwritten digits",
        "%matplotlib inline\nimport matplotlib.pyplot as plt",
        "#| export\nfrom sklearn.datasets import load_digits\nfrom sklearn.linear_model import"
        " LogisticRegression\nfrom sklearn.model_selection import train_test_split",
        "#| export\nX, y = load_digits(return_X_y=True)\nX_train, X_test, y_train, y_test ="
        " train_test_split(X, y, random_state=0)",
        "X.shape, y.shape",
        "plt.rcParams['figure.figsize'] = 3, 3\nplt.imshow(X[0].reshape(8, 8)); plt.close('all')",
        "#| export\ndef fit(C=1.0): return LogisticRegression(C=C, max_iter=50).fit(X_train, y_train)",
        "import warnings\nwarnings.filterwarnings('ignore')\nmodel = fit()\nmodel.score(X_test, y_test)",
    ],
    "pandas": [
        "#| export\nimport numpy as np\nimport pandas as pd",
        "#| export\ndf = pd.DataFrame({'age': [22, 38, np.nan, 35], 'fare': [7.2, 71.3, 7.9, 53.1]})",
        "df.head()",
        "df.describe()",
        "df.isna().sum()",
        "#| export\ndf['age'] = df.age.fillna(df.age.median())\ndf['log_fare'] = np.log1p(df.fare)",
        "df.groupby('age').fare.mean()\npd.set_option('display.precision', 2)",
        "#| export\nmeans = df.mean()",
    ],
    "training loop": [
        "#| export\nimport torch\nfrom torch import nn, optim\nimport torch.nn.functional as F",
        "#| export\ntorch.manual_seed(42)\ndevice = 'cuda' if torch.cuda.is_available() else 'cpu'",
        "#| export\nclass Net(nn.Module):\n    def __init__(self, n=8):\n        super().__init__()\n"
        "        self.a, self.b = nn.Linear(4, n), nn.Linear(n, 2)\n    def forward(self, x): return"
        " self.b(F.relu(self.a(x)))",
        "model = Net().to(device)\nopt = optim.SGD(model.parameters(), lr=0.1)\nmodel",
        "x, y = torch.randn(16, 4), torch.randint(0, 2, (16,))",
        "%%time\nfor epoch in range(3):\n    loss = F.cross_entropy(model(x), y)\n    opt.zero_grad();"
        " loss.backward(); opt.step()\nprint(loss.item())",
        "#| export\ndef accuracy(out, y): return (out.argmax(1) == y).float().mean()",
        "accuracy(model(x), y)",
    ],
    "nbdev": [
        "#| export\nfrom fastcore.all import *\nfrom fastcore.test import *",
        "#| hide\nfrom nbdev.showdoc import *",
        "#| export\nclass Card:\n    suits = L('♣', '♦', '♥', '♠')\n    def __init__(self, suit, rank):"
        " store_attr()\n    def __repr__(self): return f'{self.suits[self.suit]}{self.rank}'",
        "c = Card(1, 3)\ntest_eq(str(c), '♦3')",
        "#| export\n@patch\ndef __eq__(self: Card, other): return (self.suit, self.rank) == (other.suit,"
        " other.rank)\n@patch\ndef __lt__(self: Card, other): return self.rank < other.rank",
        "assert Card(1, 3) == c and Card(1, 2) < c",
        "#| export\n@delegates(Card.__init__)\ndef deck(**kwargs): return [Card(s, r) for s in range(4) for"
        " r in range(1, 14)]",
        "show_doc(Card)",
    ],
    "fast.ai": [
        "#| export\nfrom fastcore.basics import *\nfrom functools import partial",
        "#| export\nclass Learner:\n    def __init__(self, lr=0.1, cbs=()): fastcore_attrs = store_attr()\n"
        "    def fit(self, n): return [cb(self, i) for i in range(n) for cb in self.cbs]",
        "#| export\ndef log(learner, i): return learner.lr * i\nfast = partial(Learner, lr=1.0)",
        "fast(cbs=[log]).fit(2)",
    ],
    "data modules": [
        "#| export\nfrom dataclasses import dataclass, field\nfrom pathlib import Path",
        "#| export\n@dataclass\nclass Config:\n    lr: float = 1e-3\n    layers: list = field("
        "default_factory=lambda: [8, 8])\n    root: Path = Path('data')",
        "#| export\nCFG = Config()\nTRANSFORMS = {'train': [str.lower], 'valid': []}",
        "CFG",
        "Config(lr=5).lr, [len(t) for t in TRANSFORMS.values()]",
        "#| export\ndef load(cfg=CFG): return [x for x in range(cfg.layers[0])]",
        "!ls | head -1\nfiles = !ls\nlen(files)",
    ],
    "registry and decorators": [
        "#| export\nimport functools, time\nMODELS = {}",
        "#| export\ndef register(name=None):\n    def wrap(f):\n        MODELS[name or f.__name__] = f\n"
        "        return f\n    return wrap",
        "#| export\ndef timed(f):\n    @functools.wraps(f)\n    def inner(*a, **k):\n        start ="
        " time.time()\n        try: return f(*a, **k)\n        finally: inner.last = time.time() - start\n"
        "    inner.last = 0.0\n    return inner",
        "#| export\n@register('small')\n@timed\ndef small(): return 1",
        "assert MODELS['small']() == 1\nlist(MODELS)",
    ],
    "numpy from scratch": [
        "#| export\nimport numpy as np\nrng = np.random.default_rng(0)\nW = rng.normal(size=(4, 2))",
        "#| export\ndef softmax(x): return np.exp(x) / np.exp(x).sum(-1, keepdims=True)",
        "softmax(np.ones((1, 4)) @ W).sum()",
        "np.set_printoptions(precision=3)\nw = W.copy()\nfor step in range(3): w -= 0.1 * w\nw",
        "#| export\nlosses = []\ndef record(x): losses.append(float(x))",
        "record(1.0)\nlosses",
    ],
}
_DISPATCHER = """class Table:
    def __init__(self): self.d, self.memo = {}, {}
    def find(self, k):
        if k not in self.memo: self.memo[k] = [f for t, f in self.d.items() if issubclass(k, t)]
        return self.memo[k]
    def __call__(self, x): return self.find(type(x))[0](x)
class Reg:
    def __init__(self): self.d = defaultdict(Table)
    def __call__(self, f):
        self.d[f.__name__].d[f.__annotations__.get('x', object)] = f
        return self.d[f.__name__]
reg = Reg()"""
_LANGUAGES = "from collections import defaultdict\nL = defaultdict(str, py='python')"
_KEPT = "class Cell:\n    def __init__(self): self.source = ''\n"
_KEPT += "def kept():\n    if not hasattr(kept, 'it'): kept.it = {}\n    return kept.it\n"
_KEPT += "def source(cell): return cell.source"
_DISPATCH = ["from collections import defaultdict\n" + _DISPATCHER, "@reg\ndef cast(x): return 1"]
# name: exported cells, steps, the job's expression, and what comes of it: "pass", "warn" or "fail"
PUBLIC = {
    "defaultdict read by a key": ([_LANGUAGES], ["L['r']"], "L['r']+L['py']", "pass"),
    "defaultdict whose keys are listed": ([_LANGUAGES], ["L['r']"], "sorted(L)", "fail"),
    "defaultdict that is asked what it has": ([_LANGUAGES], ["L['r']"], "'r' in L", "fail"),
    "defaultdict that is asked by get": ([_LANGUAGES], ["L['r']"], "L.get('r', 'none')", "fail"),
    "defaultdict by another name": ([_LANGUAGES, "def n(d): return len(d)"], ["L['r']"], "n(L)", "fail"),
    "defaultdict with an entry emptied": ([_LANGUAGES], ["L['py'] = ''"], "L['py']", "fail"),
    "defaultdict with an entry filled": ([_LANGUAGES], ["L['r'] = 'R'"], "L['r']", "fail"),
    "defaultdict with zero of another type": (
        ["from collections import defaultdict\nN = defaultdict(int)"],
        ["N['a'] = False"],
        "N['a']",
        "fail",
    ),
    "defaultdict with a factory that counts": (
        ["from collections import defaultdict\nN = defaultdict(lambda: len(N))"],
        ["N['a']"],
        "N['b']",
        "fail",
    ),
    "memo in a function's attribute, beside another object": (
        [_KEPT.format("dict(a=1)")],
        ["kept()", "c = Cell()\nc.source = 'x'\nsource(c)"],
        "source(Cell()) + str(kept())",
        "pass",
    ),
    "memo in a function's attribute that a cell changes": (
        [_KEPT.format("Cell()")],
        ["c = kept()\nc.source = 'x'"],
        "source(kept())",
        "fail",
    ),
    "memo in a function's attribute whose part a cell changes": (
        [_KEPT.format("[dict(a=Cell())]")],
        ["c = kept()[0]['a']\nc.source = 'x'"],
        "source(kept()[0]['a'])",
        "fail",
    ),
    "dispatcher in a defaultdict, and its memo": (
        _DISPATCH,
        ["@reg\ndef shown(x: int): return 2\n@reg\ndef shown(x: str): return 3", "cast(1), shown('a')"],
        "cast(1)",
        "warn",
    ),
    "dispatcher whose exported function is replaced": (
        _DISPATCH,
        ["@reg\ndef shown(x: int): return 2", "@reg\ndef cast(x): return 7"],
        "reg.d['cast'](1)",
        "fail",
    ),
    "dispatcher with an entry that is no function": (
        ["from collections import defaultdict\nR = defaultdict(list)\ndef f(): return 1\nR['a'].append(f)"],
        ["def g(): return 2\nR['b'].append(g)", "R['a'].append(3)"],
        "len(R['a'])",
        "fail",
    ),
    "private helper that only an import reads, beside inspect": (
        ["import inspect\ndef _f(a, b=1): ...\nclass L: pass\nL.__signature__ = inspect.signature(_f)"],
        ["def _f(x): return x + 1\n_f(1)"],
        "L.__signature__",
        "pass",
    ),
    "private helper beside vars of a class": (
        ["def names(c): return sorted(vars(c))", "def _f(a): ...", "class A: k = 1\nA.s = _f.__name__"],
        ["def _f(x): return x + 1"],
        "names(A)",
        "warn",
    ),
    "name beside the locals of a function": (
        ["K = 1\ndef told(): return K", "def args(a, b): return sorted(locals())"],
        ["K = 2"],
        "args(1, 2)",
        "warn",
    ),
    "name by locals at the top": (["K = 1", "SPACE = locals()"], ["K = 2"], "SPACE['K']", "fail"),
    "name in the text of a query": (
        ["import pandas as pd\nK = 1\ndf = pd.DataFrame({'a': [1, 2]})"],
        ["K = 2"],
        "len(df.query('a > @K'))",
        "fail",
    ),
    "name through the frame": (["import sys\nK = 1"], ["K = 2"], "sys._getframe().f_globals['K']", "fail"),
    "matplotlib's settings by name": (
        ["from matplotlib import rcParams\ndef width(): return rcParams['lines.linewidth'] and 1"],
        ["rcParams['svg.hashsalt'] = '1'"],
        "width()",
        "warn",
    ),
    "matplotlib's settings under a cell's own value": (
        ["from matplotlib import rcParams\ndef width(): return rcParams['lines.linewidth']"],
        ["rcParams = {'lines.linewidth': 9}"],
        "width()",
        "fail",
    ),
}

VOLATILE = {  # what is stated to be volatile, with the verdict
    "list that calls fill": (
        ["#| volatile: SEEN  a log of calls\nSEEN=[]\ndef see(x): SEEN.append(x)"],
        ["see(1)"],
        "len(SEEN)",
        "warn",
    ),
    "list that calls fill, without a statement": (
        ["SEEN=[]\ndef see(x): SEEN.append(x)"],
        ["see(1)"],
        "len(SEEN)",
        "fail",
    ),
    "value that does not differ now": (
        ["#| volatile: SEEN  a log of calls\nSEEN=[]"],
        [],
        "len(SEEN)",
        "warn",
    ),
    "two names in one line": (
        ["#| volatile: A, B  counters\nA, B = [0], [0]\ndef step():\n    A[0]+=1\n    B[0]+=1"],
        ["step()"],
        "A+B",
        "warn",
    ),
    "no reason": (["#| volatile: SEEN\nSEEN=[]"], [], "len(SEEN)", "fail"),
    "name of another cell": (["SEEN=[]", "#| volatile: SEEN  a log\nK=1"], [], "len(SEEN)", "fail"),
    "function": (["#| volatile: h  tried out\ndef h(): return 1"], ["def h(): return 2"], "h()", "fail"),
    "class": (["#| volatile: M  tried out\nclass M: k=1"], ["M.k=2"], "M.k", "fail"),
    "module": (
        ["#| volatile: js  tried out\nimport json as js"],
        ["import pickle as js"],
        "js.__name__",
        "fail",
    ),
    "function of a call": (
        ["def mk(k): return lambda: k", "#| volatile: h  tried out\nh=mk(1)"],
        ["h=mk(2)"],
        "h()",
        "fail",
    ),
    "function of a call, and data in the kernel": (
        ["def mk(k): return lambda: k", "#| volatile: h  tried out\nh=mk(1)"],
        ["h=3"],
        "callable(h)",
        "fail",
    ),
    "function in a deque": (
        [
            "from collections import deque\ndef a(): return 1",
            "#| volatile: Q  tried out\nQ=deque([a])\ndef ask(): return Q[0]()",
        ],
        ["Q[0]=lambda: 2"],
        "ask()",
        "fail",
    ),
    "function in a namespace": (
        [
            "from types import SimpleNamespace\ndef a(): return 1",
            "#| volatile: S  tried out\nS=SimpleNamespace(f=a)\ndef ask(): return S.f()",
        ],
        ["S.f=lambda: 2"],
        "ask()",
        "fail",
    ),
    "function in a dictionary": (
        ["def a(): return 1", "#| volatile: OPS  tried out\nOPS={'a': a}"],
        ["def b(): return 2", "OPS['a']=b"],
        "OPS['a']()",
        "fail",
    ),
    "object of another class": (
        ["class A: k=1\nclass B: k=2", "#| volatile: a  tried out\na=A()"],
        [("editrun", 0, "class A: k=5\nclass B: k=2")],
        "a.k",
        "fail",
    ),
    "object of the same class": (
        [
            "class A:\n    def __init__(self): self.n=[]\n    def add(self): self.n.append(1)",
            "#| volatile: a  counts\na=A()",
        ],
        ["a.add()"],
        "len(a.n)",
        "warn",
    ),
    "what was made of it": (
        ["#| volatile: SEEN  a log\nSEEN=[]\ndef see(x): SEEN.append(x)", "N=len(SEEN)"],
        ["see(1)", ("run", 1)],
        "N",
        "fail",
    ),
}
