/* Warm calls of compiled steps, and the locks of the variables' stores, in C.

   A warm call looks up its program, takes the arrays of its variables out of the store, calls the program,
   puts the new arrays back and wraps the result. In Python this takes 4 to 20 microseconds, because a step
   leaves little of the interpreter's code and data in the processor's caches. Here it takes one or two.

   A store has a `Lock`, and `hold` is a `with` block that holds some. `Program` runs a program, as
   `CompiledStep` does in Python. `Caller` is the base class of `Function`. It handles the usual call: its
   arguments are arrays or per-replica arrays of a known kind, and it is neither in a replica nor in a trace.
   Otherwise it calls the Python method `_call`, which can do everything.

   `configure` tells which types and settings to look at. Between a program's return and the storing of its
   new arrays no Python code runs, so an interrupt finds either the old or the new arrays. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>
#include <time.h>

#ifdef Py_GIL_DISABLED
#error "The stores' arrays are protected by the GIL and by Lock, not by Lock alone."
#endif

#ifndef SOURCE_CHECKSUM /* of this file, so that Python notices a module that was built from another one */
#define SOURCE_CHECKSUM 0
#endif

#define MOST_ARGUMENTS 16
#define MOST_SLOTS 16

/* What `configure` was called with. */

static PyTypeObject *per_replica_type, *array_type;
static Py_ssize_t per_replica_slots[MOST_SLOTS];
static Py_ssize_t num_per_replica_slots;
static Py_ssize_t array_slot, layout_slot, mask_slot;
static PyObject *context_stack, *trace_state, *eval_trace, *disable_jit, *number_check, *first_copy;
static PyObject *trace_settings, *settings_number;

static PyObject *name_aval, *name_call, *name_committed, *name_is_outside, *name_replica, *name_strategy;
static PyObject *name_shard, *name_value;

#define SLOT(object, offset) (*(PyObject **)((char *)(object) + (offset)))

/* The offset of one of the `__slots__` of a type; -1 with an exception if it has no such slot. */
static Py_ssize_t slot_of(PyObject *type, const char *name)
{
    PyObject *descriptor = PyObject_GetAttrString(type, name);
    if (descriptor == NULL)
        return -1;
    Py_ssize_t offset = -1;
    if (Py_IS_TYPE(descriptor, &PyMemberDescr_Type))
        offset = ((PyMemberDescrObject *)descriptor)->d_member->offset;
    else
        PyErr_Format(PyExc_TypeError, "%R has no slot named %s", type, name);
    Py_DECREF(descriptor);
    return offset;
}

/* Whether `setting.value` is `expected`; -1 with an exception if it can't be read. */
static int setting_is(PyObject *setting, PyObject *expected)
{
    PyObject *value = PyObject_GetAttr(setting, name_value);
    if (value == NULL)
        return -1;
    int same = value == expected;
    Py_DECREF(value);
    return same;
}

/* Lock: `threading.RLock`, which a program can acquire without a Python call. */

typedef struct {
    PyObject_HEAD
    PyThread_type_lock lock;
    unsigned long owner; /* the thread that holds it, if `count` is not 0 */
    unsigned long count; /* how often its owner has acquired it */
} Lock;

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Wait for another thread's release: 1 if acquired, 0 after `seconds`, -1 if a signal handler raised.
   Negative `seconds` wait forever. */
static int lock_wait(Lock *self, double seconds)
{
    double deadline = seconds_now() + seconds;
    for (;;) {
        PY_TIMEOUT_T microseconds = seconds < 0 ? -1 : (PY_TIMEOUT_T)(1e6 * seconds);
        PyLockStatus status;
        Py_BEGIN_ALLOW_THREADS
        status = PyThread_acquire_lock_timed(self->lock, microseconds, 1);
        Py_END_ALLOW_THREADS
        if (status == PY_LOCK_ACQUIRED)
            return 1;
        if (status == PY_LOCK_FAILURE)
            return 0;
        if (PyErr_CheckSignals() < 0)
            return -1;
        if (seconds >= 0) {
            seconds = deadline - seconds_now();
            seconds = seconds < 0 ? 0 : seconds;
        }
    }
}

static int lock_acquire(Lock *self, double seconds)
{
    unsigned long thread = PyThread_get_thread_ident();
    if (self->count > 0 && self->owner == thread) {
        self->count++;
        return 1;
    }
    if (!PyThread_acquire_lock(self->lock, NOWAIT_LOCK)) {
        int acquired = seconds == 0 ? 0 : lock_wait(self, seconds);
        if (acquired != 1)
            return acquired;
    }
    self->owner = thread;
    self->count = 1;
    return 1;
}

static int lock_release(Lock *self)
{
    if (self->count == 0 || self->owner != PyThread_get_thread_ident()) {
        PyErr_SetString(PyExc_RuntimeError, "released a lock that this thread does not hold");
        return -1;
    }
    if (--self->count == 0)
        PyThread_release_lock(self->lock);
    return 0;
}

static PyObject *lock_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, ":Lock", names))
        return NULL;
    Lock *self = (Lock *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->lock = PyThread_allocate_lock();
    if (self->lock == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return (PyObject *)self;
}

static void lock_dealloc(Lock *self)
{
    if (self->lock != NULL) {
        if (self->count > 0)
            PyThread_release_lock(self->lock);
        PyThread_free_lock(self->lock);
    }
    Py_TYPE(self)->tp_free(self);
}

static PyObject *lock_acquire_method(Lock *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"blocking", "timeout", NULL};
    int blocking = 1;
    double timeout = -1;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|pd:acquire", names, &blocking, &timeout))
        return NULL;
    int acquired = lock_acquire(self, blocking ? timeout : 0);
    return acquired < 0 ? NULL : PyBool_FromLong(acquired);
}

static PyObject *lock_release_method(Lock *self, PyObject *Py_UNUSED(ignored))
{
    if (lock_release(self) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *lock_enter(Lock *self, PyObject *Py_UNUSED(ignored))
{
    int acquired = lock_acquire(self, -1);
    return acquired < 0 ? NULL : PyBool_FromLong(acquired);
}

static PyObject *lock_exit(Lock *self, PyObject *Py_UNUSED(args))
{
    return lock_release_method(self, NULL);
}

static PyMethodDef lock_methods[] = {
    {"acquire", (PyCFunction)(void (*)(void))lock_acquire_method, METH_VARARGS | METH_KEYWORDS, NULL},
    {"release", (PyCFunction)lock_release_method, METH_NOARGS, NULL},
    {"__enter__", (PyCFunction)lock_enter, METH_NOARGS, NULL},
    {"__exit__", (PyCFunction)lock_exit, METH_VARARGS, NULL},
    {NULL},
};

static PyTypeObject LockType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "replicax._native._warm.Lock",
    .tp_doc = "A lock that its owner can acquire again, like `threading.RLock`.",
    .tp_basicsize = sizeof(Lock),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = lock_new,
    .tp_dealloc = (destructor)lock_dealloc,
    .tp_methods = lock_methods,
};

/* Hold: a `with` block that holds several locks.

   The `with` statement calls `__enter__`, and handles no signal before the block begins. So an exception of a
   signal handler can't get between the two and leave a lock locked, as it could between lines of Python. */

typedef struct {
    PyObject_HEAD
    PyObject *locks; /* a tuple, in the order in which they are acquired */
    double seconds;  /* how long to wait for each; forever if it is negative */
    PyObject *late;  /* called after that time: it raises an exception, or returns to wait again */
    PyObject *ready; /* called when all are acquired */
} Hold;

/* Acquire one of the locks: 1, or -1 with an exception. */
static int hold_acquire(Hold *self, Lock *lock)
{
    for (;;) {
        int acquired = lock_acquire(lock, self->seconds);
        if (acquired != 0)
            return acquired;
        PyObject *done = PyObject_CallNoArgs(self->late);
        if (done == NULL)
            return -1;
        Py_DECREF(done);
    }
}

/* Release the first `count` locks; keeps the current exception. */
static void hold_release(Hold *self, Py_ssize_t count)
{
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    while (--count >= 0)
        if (lock_release((Lock *)PyTuple_GET_ITEM(self->locks, count)) < 0)
            PyErr_WriteUnraisable((PyObject *)self);
    PyErr_Restore(type, error, traceback);
}

static PyObject *hold_enter(Hold *self, PyObject *Py_UNUSED(ignored))
{
    Py_ssize_t count = 0;
    while (count < PyTuple_GET_SIZE(self->locks)) {
        if (hold_acquire(self, (Lock *)PyTuple_GET_ITEM(self->locks, count)) < 0) {
            hold_release(self, count);
            return NULL;
        }
        count++;
    }
    if (self->ready == Py_None)
        Py_RETURN_NONE;
    PyObject *done = PyObject_CallNoArgs(self->ready);
    if (done == NULL)
        hold_release(self, count);
    return done;
}

static PyObject *hold_exit(Hold *self, PyObject *Py_UNUSED(args))
{
    hold_release(self, PyTuple_GET_SIZE(self->locks));
    Py_RETURN_NONE;
}

static PyObject *hold_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"locks", "seconds", "late", "ready", NULL};
    PyObject *locks, *late = Py_None, *ready = Py_None;
    double seconds = -1;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!|dOO:hold", names, &PyTuple_Type, &locks, &seconds,
                                     &late, &ready))
        return NULL;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(locks); i++) {
        if (!Py_IS_TYPE(PyTuple_GET_ITEM(locks, i), &LockType)) {
            PyErr_SetString(PyExc_TypeError, "hold() takes a tuple of Locks");
            return NULL;
        }
    }
    Hold *self = (Hold *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->locks = Py_NewRef(locks);
    self->seconds = seconds;
    self->late = Py_NewRef(late);
    self->ready = Py_NewRef(ready);
    return (PyObject *)self;
}

static int hold_traverse(Hold *self, visitproc visit, void *arg)
{
    Py_VISIT(self->locks);
    Py_VISIT(self->late);
    Py_VISIT(self->ready);
    return 0;
}

static int hold_clear(Hold *self)
{
    Py_CLEAR(self->late);
    Py_CLEAR(self->ready);
    return 0;
}

static void hold_dealloc(Hold *self)
{
    PyObject_GC_UnTrack(self);
    hold_clear(self);
    Py_CLEAR(self->locks);
    Py_TYPE(self)->tp_free(self);
}

static PyMethodDef hold_methods[] = {
    {"__enter__", (PyCFunction)hold_enter, METH_NOARGS, NULL},
    {"__exit__", (PyCFunction)hold_exit, METH_VARARGS, NULL},
    {NULL},
};

static PyTypeObject HoldType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "replicax._native._warm.hold",
    .tp_doc = "A `with` block that holds several locks.",
    .tp_basicsize = sizeof(Hold),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = hold_new,
    .tp_traverse = (traverseproc)hold_traverse,
    .tp_clear = (inquiry)hold_clear,
    .tp_dealloc = (destructor)hold_dealloc,
    .tp_methods = hold_methods,
};

/* A list of indices. */

typedef struct {
    Py_ssize_t count, *items;
} Indices;

/* The indices in a tuple; -1 with an exception if one is negative or not an integer. */
static int indices_from(Indices *self, PyObject *tuple)
{
    Py_ssize_t count = PyTuple_GET_SIZE(tuple);
    if ((self->items = PyMem_New(Py_ssize_t, count)) == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (self->count = 0; self->count < count; self->count++) {
        Py_ssize_t index = PyLong_AsSsize_t(PyTuple_GET_ITEM(tuple, self->count));
        if (index < 0) {
            if (!PyErr_Occurred())
                PyErr_SetString(PyExc_ValueError, "the indices of a Program must not be negative");
            return -1;
        }
        self->items[self->count] = index;
    }
    return 0;
}

/* Whether a list has an item with each of these indices. */
static int indices_fit(const Indices *self, PyObject *list)
{
    for (Py_ssize_t i = 0; i < self->count; i++)
        if (self->items[i] >= PyList_GET_SIZE(list))
            return 0;
    return 1;
}

/* The items of a list that have these indices, as a new list. */
static PyObject *indices_take(const Indices *self, PyObject *list)
{
    PyObject *items = PyList_New(self->count);
    for (Py_ssize_t i = 0; items != NULL && i < self->count; i++)
        PyList_SET_ITEM(items, i, Py_NewRef(PyList_GET_ITEM(list, self->items[i])));
    return items;
}

/* Program: runs a compiled step whose variables are in one store. */

typedef struct {
    PyObject_HEAD
    PyObject *place;   /* called with the leaves if a plain argument may be on other devices, or None */
    PyObject *jitted;  /* ([read], [written], *arguments) -> (*results, *new) */
    PyObject *checked; /* called instead, with the leaves, if results have to be checked for NaNs */
    PyObject *make_ready; /* called before if the store has views or an interrupted call */
    PyObject *explain; /* called with the exception if the program fails */
    PyObject *result;  /* the layout of a per-replica result, None for one plain array, or a function */
    PyObject *store;
    PyObject *arrays;  /* of the store */
    Lock *lock;        /* of the store */
    Py_ssize_t unfinished_slot, views_slot;
    Indices read, written; /* where the variables' arrays are in the store */
    Indices plain;         /* which leaves are plain arguments */
} Program;

static PyTypeObject ProgramType;

static int program_traverse(Program *self, visitproc visit, void *arg)
{
    Py_VISIT(self->place);
    Py_VISIT(self->jitted);
    Py_VISIT(self->checked);
    Py_VISIT(self->make_ready);
    Py_VISIT(self->explain);
    Py_VISIT(self->result);
    Py_VISIT(self->store);
    Py_VISIT(self->arrays);
    Py_VISIT(self->lock);
    return 0;
}

static int program_clear(Program *self)
{
    Py_CLEAR(self->place);
    Py_CLEAR(self->jitted);
    Py_CLEAR(self->checked);
    Py_CLEAR(self->make_ready);
    Py_CLEAR(self->explain);
    Py_CLEAR(self->result);
    Py_CLEAR(self->store);
    Py_CLEAR(self->arrays);
    Py_CLEAR(self->lock);
    return 0;
}

static void program_dealloc(Program *self)
{
    PyObject_GC_UnTrack(self);
    program_clear(self);
    PyMem_Free(self->read.items);
    PyMem_Free(self->written.items);
    PyMem_Free(self->plain.items);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *program_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"jitted", "checked", "make_ready", "explain", "result", "store",
                            "read",   "written", "place",      "plain",   NULL};
    PyObject *jitted, *checked, *make_ready, *explain, *result, *store, *read, *written, *place, *plain;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "$OOOOOOO!O!OO!:Program", names, &jitted, &checked,
                                     &make_ready, &explain, &result, &store, &PyTuple_Type, &read,
                                     &PyTuple_Type, &written, &place, &PyTuple_Type, &plain))
        return NULL;
    if (per_replica_type == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "call configure() before creating a Program");
        return NULL;
    }
    PyObject *store_type = (PyObject *)Py_TYPE(store);
    Py_ssize_t arrays_slot = slot_of(store_type, "arrays"), lock_slot = slot_of(store_type, "lock");
    Py_ssize_t unfinished_slot = slot_of(store_type, "unfinished"), views_slot = slot_of(store_type, "views");
    if (arrays_slot < 0 || lock_slot < 0 || unfinished_slot < 0 || views_slot < 0)
        return NULL;
    if (!PyList_CheckExact(SLOT(store, arrays_slot)) || !Py_IS_TYPE(SLOT(store, lock_slot), &LockType)) {
        PyErr_SetString(PyExc_TypeError, "a Program needs a store with a list of arrays and a Lock");
        return NULL;
    }
    Program *self = (Program *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->jitted = Py_NewRef(jitted);
    self->checked = Py_NewRef(checked);
    self->make_ready = Py_NewRef(make_ready);
    self->explain = Py_NewRef(explain);
    self->result = Py_NewRef(result);
    self->store = Py_NewRef(store);
    self->arrays = Py_NewRef(SLOT(store, arrays_slot));
    self->lock = (Lock *)Py_NewRef(SLOT(store, lock_slot));
    self->unfinished_slot = unfinished_slot;
    self->views_slot = views_slot;
    self->place = Py_NewRef(place);
    if (indices_from(&self->read, read) < 0 || indices_from(&self->written, written) < 0 ||
        indices_from(&self->plain, plain) < 0)
        Py_CLEAR(self);
    return (PyObject *)self;
}

/* Complete interrupted calls and copy arrays that have views, if there are any. */
static int program_prepare(Program *self)
{
    PyObject *views = SLOT(self->store, self->views_slot);
    if (SLOT(self->store, self->unfinished_slot) == Py_None && PyDict_CheckExact(views) &&
        PyDict_GET_SIZE(views) == 0)
        return 0;
    PyObject *done = PyObject_CallNoArgs(self->make_ready);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* Let Python add to the current exception, or replace it. */
static void explain_failure(Program *self)
{
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    PyErr_NormalizeException(&type, &error, &traceback);
    if (traceback != NULL)
        PyException_SetTraceback(error, traceback);
    PyObject *done = PyObject_CallOneArg(self->explain, error);
    if (done != NULL) {
        Py_DECREF(done);
        PyErr_Restore(type, error, traceback);
        return;
    }
    PyObject *new_type, *new_error, *new_traceback;
    PyErr_Fetch(&new_type, &new_error, &new_traceback);
    PyErr_NormalizeException(&new_type, &new_error, &new_traceback);
    if (new_error != error)
        PyException_SetContext(new_error, Py_NewRef(error));
    PyErr_Restore(new_type, new_error, new_traceback);
    Py_DECREF(type);
    Py_DECREF(error);
    Py_XDECREF(traceback);
}

/* Put the last ones of the `returned` arrays into the store. */
static int program_store(Program *self, PyObject *returned)
{
    Py_ssize_t num_written = self->written.count;
    if (!PyTuple_CheckExact(returned) || PyTuple_GET_SIZE(returned) < num_written) {
        PyErr_Format(PyExc_TypeError, "a step's program must return a tuple of results and %zd new arrays",
                     num_written);
        return -1;
    }
    if (!indices_fit(&self->written, self->arrays)) {
        PyErr_SetString(PyExc_IndexError, "arrays were removed from a store while a step was running");
        return -1;
    }
    Py_ssize_t start = PyTuple_GET_SIZE(returned) - num_written;
    for (Py_ssize_t i = 0; i < num_written; i++) {
        Py_ssize_t place = self->written.items[i];
        PyObject *old = PyList_GET_ITEM(self->arrays, place);
        PyList_SET_ITEM(self->arrays, place, Py_NewRef(PyTuple_GET_ITEM(returned, start + i)));
        Py_DECREF(old); /* the program's operands have another reference, so this frees nothing */
    }
    return 0;
}

/* Call the program and store its new arrays, holding the lock; returns what the program returned. */
static PyObject *program_step(Program *self, PyObject *const *leaves, Py_ssize_t num_leaves)
{
    /* The vector call may use the place before its operands. */
    PyObject *few[3 + MOST_ARGUMENTS], **operands = few, *returned = NULL;
    if (!indices_fit(&self->read, self->arrays) || !indices_fit(&self->written, self->arrays)) {
        PyErr_SetString(PyExc_IndexError, "the store of a step has fewer arrays than the step uses");
        return NULL;
    }
    if (num_leaves > MOST_ARGUMENTS && (operands = PyMem_New(PyObject *, 3 + num_leaves)) == NULL)
        return PyErr_NoMemory();
    PyObject *read = indices_take(&self->read, self->arrays);
    PyObject *written = indices_take(&self->written, self->arrays);
    if (read != NULL && written != NULL) {
        operands[1] = read;
        operands[2] = written;
        memcpy(operands + 3, leaves, num_leaves * sizeof(PyObject *));
        size_t count = (2 + num_leaves) | PY_VECTORCALL_ARGUMENTS_OFFSET;
        returned = PyObject_Vectorcall(self->jitted, operands + 1, count, NULL);
        if (returned == NULL)
            explain_failure(self);
        else if (program_store(self, returned) < 0)
            Py_CLEAR(returned);
    }
    Py_XDECREF(written);
    Py_XDECREF(read);
    if (operands != few)
        PyMem_Free(operands);
    return returned;
}

/* `PerReplica.from_layout`. */
static PyObject *new_per_replica(PyObject *array, PyObject *layout)
{
    PyObject *value = per_replica_type->tp_alloc(per_replica_type, 0);
    if (value == NULL)
        return NULL;
    for (Py_ssize_t i = 0; i < num_per_replica_slots; i++)
        SLOT(value, per_replica_slots[i]) = Py_NewRef(Py_None);
    Py_SETREF(SLOT(value, array_slot), Py_NewRef(array));
    Py_SETREF(SLOT(value, layout_slot), Py_NewRef(layout));
    return value;
}

/* `first_copy`, with less to do if the program's output is uncommitted. */
static PyObject *new_plain_result(PyObject *array)
{
    if (!Py_IS_TYPE(array, array_type))
        return PyObject_CallOneArg(first_copy, array);
    PyObject *copy = PyObject_CallMethodNoArgs(array, name_shard);
    if (copy == NULL)
        return NULL;
    PyObject *committed = PyObject_GetAttr(copy, name_committed);
    Py_XDECREF(committed);
    if (committed == Py_False)
        return copy;
    Py_DECREF(copy);
    return committed == NULL ? NULL : PyObject_CallOneArg(first_copy, array);
}

static PyObject *list_of(PyObject *const *items, Py_ssize_t count)
{
    PyObject *list = PyList_New(count);
    for (Py_ssize_t i = 0; list != NULL && i < count; i++)
        PyList_SET_ITEM(list, i, Py_NewRef(items[i]));
    return list;
}

/* `callable([*items])`. */
static PyObject *call_with_list(PyObject *callable, PyObject *const *items, Py_ssize_t count)
{
    PyObject *list = list_of(items, count);
    if (list == NULL)
        return NULL;
    PyObject *result = PyObject_CallOneArg(callable, list);
    Py_DECREF(list);
    return result;
}

/* The result of a step, from what its program returned. */
static PyObject *program_result(Program *self, PyObject *returned)
{
    PyObject *const *results = &PyTuple_GET_ITEM(returned, 0);
    Py_ssize_t num_results = PyTuple_GET_SIZE(returned) - self->written.count;
    if (num_results == 1 && self->result == Py_None)
        return new_plain_result(results[0]);
    if (num_results == 1 && !PyCallable_Check(self->result))
        return new_per_replica(results[0], self->result);
    return call_with_list(self->result, results, num_results);
}

/* Whether a plain argument may be on other devices than the step expects: 0 for arrays that JAX may move;
   -1 with an exception. */
static int program_must_place(Program *self, PyObject *const *leaves, Py_ssize_t num_leaves)
{
    if (self->place == Py_None)
        return 0;
    for (Py_ssize_t i = 0; i < self->plain.count; i++) {
        Py_ssize_t index = self->plain.items[i];
        if (index >= num_leaves || !Py_IS_TYPE(leaves[index], array_type))
            return 1;
        PyObject *committed = PyObject_GetAttr(leaves[index], name_committed);
        if (committed == NULL)
            return -1;
        Py_DECREF(committed);
        if (committed != Py_False)
            return 1;
    }
    return 0;
}

/* Run the step with arguments that the caller has references to, and that are where the step expects them. */
static PyObject *program_run_placed(Program *self, PyObject *const *leaves, Py_ssize_t num_leaves)
{
    int is_unchecked = setting_is(number_check, Py_None);
    if (is_unchecked <= 0)
        return is_unchecked < 0 ? NULL : call_with_list(self->checked, leaves, num_leaves);
    if (lock_acquire(self->lock, -1) < 0)
        return NULL;
    PyObject *returned = program_prepare(self) < 0 ? NULL : program_step(self, leaves, num_leaves);
    if (lock_release(self->lock) < 0)
        Py_CLEAR(returned);
    if (returned == NULL)
        return NULL;
    PyObject *result = program_result(self, returned);
    Py_DECREF(returned);
    return result;
}

/* Run the step with arguments that the caller has references to. */
static PyObject *program_run(Program *self, PyObject *const *leaves, Py_ssize_t num_leaves)
{
    int must_place = program_must_place(self, leaves, num_leaves);
    if (must_place <= 0)
        return must_place < 0 ? NULL : program_run_placed(self, leaves, num_leaves);
    PyObject *placed = call_with_list(self->place, leaves, num_leaves);
    PyObject *tuple = placed == NULL ? NULL : PySequence_Tuple(placed);
    Py_XDECREF(placed);
    if (tuple == NULL)
        return NULL;
    PyObject *result = program_run_placed(self, &PyTuple_GET_ITEM(tuple, 0), PyTuple_GET_SIZE(tuple));
    Py_DECREF(tuple);
    return result;
}

static PyObject *program_call(Program *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"leaves", NULL};
    PyObject *list;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!:Program", names, &PyList_Type, &list))
        return NULL;
    PyObject *leaves = PyList_AsTuple(list); /* which no other thread can change during the call */
    if (leaves == NULL)
        return NULL;
    PyObject *result = program_run(self, &PyTuple_GET_ITEM(leaves, 0), PyTuple_GET_SIZE(leaves));
    Py_DECREF(leaves);
    return result;
}

static PyTypeObject ProgramType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "replicax._native._warm.Program",
    .tp_doc = "Runs a compiled step with the leaves of its arguments.",
    .tp_basicsize = sizeof(Program),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = program_new,
    .tp_traverse = (traverseproc)program_traverse,
    .tp_clear = (inquiry)program_clear,
    .tp_dealloc = (destructor)program_dealloc,
    .tp_call = (ternaryfunc)program_call,
};

/* Caller: finds the program for a call and runs it. */

typedef struct {
    PyObject_HEAD
    PyObject *known;      /* the `run` functions of programs, by the key of a call */
    PyObject *last_key;   /* the key of the last call, and what was found for it */
    PyObject *last_run;
    PyObject *last_stack; /* the last stack of contexts in which a program could be called */
    PyObject *last_strategy; /* what it contributes to the key, or NULL */
} Caller;

static int caller_traverse(Caller *self, visitproc visit, void *arg)
{
    Py_VISIT(self->known);
    Py_VISIT(self->last_key);
    Py_VISIT(self->last_run);
    Py_VISIT(self->last_stack);
    Py_VISIT(self->last_strategy);
    return 0;
}

static int caller_clear(Caller *self)
{
    Py_CLEAR(self->known);
    Py_CLEAR(self->last_key);
    Py_CLEAR(self->last_run);
    Py_CLEAR(self->last_stack);
    Py_CLEAR(self->last_strategy);
    return 0;
}

static void caller_dealloc(Caller *self)
{
    PyObject_GC_UnTrack(self);
    caller_clear(self);
    Py_TYPE(self)->tp_free(self);
}

/* JAX's settings in the last call in any thread, their number, and whether they disable `jax.jit`. */
static PyObject *last_settings, *last_number;
static int last_disables_jit;

static int are_last_settings(PyObject *settings)
{
    if (last_settings == NULL || PyTuple_GET_SIZE(settings) != PyTuple_GET_SIZE(last_settings))
        return 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(settings); i++)
        if (PyTuple_GET_ITEM(settings, i) != PyTuple_GET_ITEM(last_settings, i))
            return 0;
    return 1;
}

/* The number of JAX's current settings, as a new reference, or None if they disable `jax.jit`. */
static PyObject *number_of_settings(void)
{
    PyObject *settings = PyObject_CallNoArgs(trace_settings);
    if (settings == NULL)
        return NULL;
    if (!PyTuple_CheckExact(settings)) {
        Py_DECREF(settings);
        PyErr_SetString(PyExc_TypeError, "JAX's settings are not a tuple");
        return NULL;
    }
    PyObject *number;
    if (are_last_settings(settings)) {
        number = Py_NewRef(last_disables_jit ? Py_None : last_number);
        Py_DECREF(settings);
        return number;
    }
    int disables_jit = setting_is(disable_jit, Py_True);
    number = disables_jit < 0 ? NULL : PyObject_CallOneArg(settings_number, settings);
    if (number == NULL) {
        Py_DECREF(settings);
        return NULL;
    }
    /* All three belong together, so nothing may run between the assignments. */
    PyObject *old_settings = last_settings, *old_number = last_number;
    last_settings = settings;
    last_number = Py_NewRef(number);
    last_disables_jit = disables_jit;
    Py_XDECREF(old_settings);
    Py_XDECREF(old_number);
    if (disables_jit)
        Py_SETREF(number, Py_NewRef(Py_None));
    return number;
}

/* Whether a program can be called in a stack of contexts: 1; 0 if `_call` has to find out what to do; -1 with
   an exception. `strategy` is what the stack contributes to the key, a new reference or NULL. */
static int caller_check_stack(Caller *self, PyObject *stack, PyObject **strategy)
{
    if (stack == self->last_stack) {
        *strategy = Py_XNewRef(self->last_strategy);
        return 1;
    }
    PyObject *found = NULL;
    if (PyTuple_GET_SIZE(stack) > 0) {
        PyObject *context = PyTuple_GET_ITEM(stack, PyTuple_GET_SIZE(stack) - 1);
        PyObject *is_outside = PyObject_GetAttr(context, name_is_outside);
        Py_XDECREF(is_outside);
        if (is_outside != Py_True)
            return is_outside == NULL ? -1 : 0;
        PyObject *replica = PyObject_GetAttr(context, name_replica);
        Py_XDECREF(replica);
        if (replica == NULL)
            return -1;
        if (replica != Py_None) /* the default replica, inside of a scope */
            return 1;
        if ((found = PyObject_GetAttr(context, name_strategy)) == NULL)
            return -1;
    }
    /* Both belong together, so nothing may run between the assignments. */
    PyObject *old_strategy = self->last_strategy, *old_stack = self->last_stack;
    *strategy = Py_XNewRef(found);
    self->last_strategy = found;
    self->last_stack = Py_NewRef(stack);
    Py_XDECREF(old_strategy);
    Py_XDECREF(old_stack);
    return 1;
}

/* Whether a program can be called here, as `caller_check_stack`. */
static int caller_check_context(Caller *self, PyObject **strategy)
{
    int executes = setting_is(trace_state, eval_trace);
    if (executes <= 0)
        return executes;
    PyObject *stack;
    if (PyContextVar_Get(context_stack, NULL, &stack) < 0)
        return -1;
    int is_usable = 0;
    if (stack != NULL && PyTuple_CheckExact(stack))
        is_usable = caller_check_stack(self, stack, strategy);
    Py_XDECREF(stack);
    return is_usable;
}

/* The function for the call with this key, as a new reference; NULL, perhaps with an exception, if there is
   none. */
static PyObject *caller_find(Caller *self, PyObject **key, Py_ssize_t size)
{
    if (self->last_key != NULL && PyTuple_GET_SIZE(self->last_key) == size) {
        Py_ssize_t i = 0;
        while (i < size && PyTuple_GET_ITEM(self->last_key, i) == key[i])
            i++;
        if (i == size)
            return Py_NewRef(self->last_run);
    }
    if (self->known == NULL || !PyDict_CheckExact(self->known))
        return NULL;
    PyObject *tuple = PyTuple_New(size);
    if (tuple == NULL)
        return NULL;
    for (Py_ssize_t i = 0; i < size; i++)
        PyTuple_SET_ITEM(tuple, i, Py_NewRef(key[i]));
    PyObject *known = Py_NewRef(self->known); /* keys are compared in Python, where it may be replaced */
    PyObject *run = Py_XNewRef(PyDict_GetItemWithError(known, tuple));
    Py_DECREF(known);
    if (run == NULL) {
        Py_DECREF(tuple);
        return NULL;
    }
    /* Both belong together, so nothing may run between the assignments. */
    PyObject *old_key = self->last_key, *old_run = self->last_run;
    self->last_key = tuple;
    self->last_run = Py_NewRef(run);
    Py_XDECREF(old_key);
    Py_XDECREF(old_run);
    return run;
}

static PyObject *caller_call_python(Caller *self, PyObject *args, PyObject *kwargs)
{
    PyObject *call = PyObject_GetAttr((PyObject *)self, name_call);
    if (call == NULL)
        return NULL;
    PyObject *result = PyObject_Call(call, args, kwargs);
    Py_DECREF(call);
    return result;
}

/* The function for a call with these arguments, as a new reference; NULL, perhaps with an exception, if there
   is none. `arrays` gets references to the arrays among the arguments, in any case. */
static PyObject *caller_find_for(Caller *self, PyObject *args, PyObject *strategy, PyObject **arrays)
{
    PyObject *number = number_of_settings();
    if (number == NULL || number == Py_None) {
        Py_XDECREF(number);
        return NULL;
    }
    PyObject *run = NULL, *key[2 + 2 * MOST_ARGUMENTS]; /* borrowed from `args` and `arrays` */
    Py_ssize_t size = 0;
    key[size++] = number;
    if (strategy != NULL)
        key[size++] = strategy;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args); i++) {
        PyObject *array = PyTuple_GET_ITEM(args, i);
        if (Py_IS_TYPE(array, per_replica_type) && SLOT(array, mask_slot) == Py_None) {
            if ((key[size++] = SLOT(array, layout_slot)) == NULL)
                goto done;
            array = SLOT(array, array_slot);
        }
        if (array == NULL || !Py_IS_TYPE(array, array_type))
            goto done;
        arrays[i] = Py_NewRef(array);
        PyObject *aval = PyObject_GetAttr(array, name_aval);
        if (aval == NULL)
            goto done;
        Py_DECREF(aval); /* the array keeps it */
        key[size++] = aval;
    }
    run = caller_find(self, key, size);
done:
    Py_DECREF(number);
    return run;
}

static PyObject *caller_call(Caller *self, PyObject *args, PyObject *kwargs)
{
    Py_ssize_t num_arguments = PyTuple_GET_SIZE(args);
    int is_usual = num_arguments <= MOST_ARGUMENTS && (kwargs == NULL || PyDict_GET_SIZE(kwargs) == 0);
    PyObject *strategy = NULL, *arrays[MOST_ARGUMENTS] = {NULL};
    if (is_usual)
        is_usual = caller_check_context(self, &strategy);
    if (is_usual <= 0)
        return is_usual < 0 ? NULL : caller_call_python(self, args, kwargs);
    PyObject *run = caller_find_for(self, args, strategy, arrays);
    PyObject *result = NULL;
    if (run == NULL)
        result = PyErr_Occurred() ? NULL : caller_call_python(self, args, kwargs);
    else if (Py_IS_TYPE(run, &ProgramType))
        result = program_run((Program *)run, arrays, num_arguments);
    else
        result = call_with_list(run, arrays, num_arguments);
    Py_XDECREF(run);
    Py_XDECREF(strategy);
    for (Py_ssize_t i = 0; i < num_arguments && i < MOST_ARGUMENTS; i++)
        Py_XDECREF(arrays[i]);
    return result;
}

static PyMemberDef caller_members[] = {
    {"_known", T_OBJECT_EX, offsetof(Caller, known), 0, NULL},
    {NULL},
};

static PyTypeObject CallerType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "replicax._native._warm.Caller",
    .tp_doc = "Calls the programs in `_known`, or the method `_call`.",
    .tp_basicsize = sizeof(Caller),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,
    .tp_new = PyType_GenericNew,
    .tp_traverse = (traverseproc)caller_traverse,
    .tp_clear = (inquiry)caller_clear,
    .tp_dealloc = (destructor)caller_dealloc,
    .tp_call = (ternaryfunc)caller_call,
    .tp_members = caller_members,
};

/* The module. */

static int read_slots(PyObject *type)
{
    PyObject *slots = PyObject_GetAttrString(type, "__slots__");
    PyObject *names = slots == NULL ? NULL : PySequence_Tuple(slots);
    Py_XDECREF(slots);
    if (names == NULL)
        return -1;
    Py_ssize_t count = PyTuple_GET_SIZE(names), i = 0;
    for (; i < count && i < MOST_SLOTS; i++) {
        const char *name = PyUnicode_AsUTF8(PyTuple_GET_ITEM(names, i));
        if (name == NULL || (per_replica_slots[i] = slot_of(type, name)) < 0)
            break;
    }
    Py_DECREF(names);
    if (i < count) {
        if (!PyErr_Occurred())
            PyErr_Format(PyExc_TypeError, "%R has more than %d slots", type, MOST_SLOTS);
        return -1;
    }
    num_per_replica_slots = count;
    array_slot = slot_of(type, "_array");
    layout_slot = slot_of(type, "_layout");
    mask_slot = slot_of(type, "_mask");
    return array_slot < 0 || layout_slot < 0 || mask_slot < 0 ? -1 : 0;
}

static PyObject *configure(PyObject *Py_UNUSED(module), PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"per_replica", "array", "context_stack", "trace_state", "eval_trace",
                            "disable_jit", "number_check", "first_copy", "trace_settings",
                            "settings_number", NULL};
    PyObject *per_replica, *array, *stack, *trace, *eval, *no_jit, *check, *first, *settings, *number;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "$O!O!O!OOOOOOO:configure", names, &PyType_Type,
                                     &per_replica, &PyType_Type, &array, &PyContextVar_Type, &stack, &trace,
                                     &eval, &no_jit, &check, &first, &settings, &number))
        return NULL;
    if (read_slots(per_replica) < 0)
        return NULL;
    Py_XSETREF(per_replica_type, (PyTypeObject *)Py_NewRef(per_replica));
    Py_XSETREF(array_type, (PyTypeObject *)Py_NewRef(array));
    Py_XSETREF(context_stack, Py_NewRef(stack));
    Py_XSETREF(trace_state, Py_NewRef(trace));
    Py_XSETREF(eval_trace, Py_NewRef(eval));
    Py_XSETREF(disable_jit, Py_NewRef(no_jit));
    Py_XSETREF(number_check, Py_NewRef(check));
    Py_XSETREF(first_copy, Py_NewRef(first));
    Py_XSETREF(trace_settings, Py_NewRef(settings));
    Py_XSETREF(settings_number, Py_NewRef(number));
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"configure", (PyCFunction)(void (*)(void))configure, METH_VARARGS | METH_KEYWORDS, NULL},
    {NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "replicax._native._warm",
    .m_doc = "Warm calls of compiled steps, and the locks of the variables' stores, in C.",
    .m_size = -1,
    .m_methods = functions,
};

static int intern(PyObject **name, const char *text)
{
    *name = PyUnicode_InternFromString(text);
    return *name == NULL ? -1 : 0;
}

PyMODINIT_FUNC PyInit__warm(void)
{
    if (intern(&name_aval, "aval") < 0 || intern(&name_call, "_call") < 0 ||
        intern(&name_committed, "_committed") < 0 || intern(&name_is_outside, "is_outside") < 0 ||
        intern(&name_replica, "replica") < 0 || intern(&name_strategy, "strategy") < 0 ||
        intern(&name_shard, "_fully_replicated_shard") < 0 || intern(&name_value, "value") < 0)
        return NULL;
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL)
        return NULL;
    if (PyModule_AddIntConstant(module, "source_checksum", SOURCE_CHECKSUM) < 0 ||
        PyModule_AddType(module, &LockType) < 0 || PyModule_AddType(module, &HoldType) < 0 ||
        PyModule_AddType(module, &ProgramType) < 0 || PyModule_AddType(module, &CallerType) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
